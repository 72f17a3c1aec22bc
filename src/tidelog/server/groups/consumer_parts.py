"""What those who answer members of a group with a server-side assignor work with."""

from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.server.groups.consumer_fencing import Fencing
from tidelog.server.groups.consumer_regexes import Regexes
from tidelog.server.groups.consumer_steps import Steps
from tidelog.server.groups.conversion import Conversion
from tidelog.storage.files import encode_topic_id

_UUID_BITS: Final = 128


class Parts(NamedTuple):
    """The coordinator's parts. Belong to the loop's thread."""

    steps: Steps
    fencing: Fencing
    conversion: Conversion
    regexes: Regexes
    random: Random

    def new_member_id(self) -> str:
        """An id that nobody has, as Kafka writes them."""
        return encode_topic_id(UUID(int=self.random.getrandbits(_UUID_BITS), version=4))
