"""What a mirror finds before it starts: its checkpoint and its topics. Spark is not needed."""

from tidelog.env import Env
from tidelog.errors import InvalidRequest, UnknownTopic
from tidelog.spark.jobs.mirror_growth import with_topics
from tidelog.spark.jobs.mirror_options import SPARK_DIR, STATE_FILE
from tidelog.spark.jobs.mirror_places import TopicFacts, read_topic
from tidelog.spark.jobs.mirror_plan import MirrorPlan, MirrorState, decode_state
from tidelog.spark.jobs.mirror_targets import check_targets
from tidelog.storage import files


def read_state(env: Env, checkpoint: str) -> MirrorState | None:
    """What the checkpoint says, None where it is new; raises CorruptFile, UnsupportedVersion."""
    try:
        return decode_state(files.read_file(env.files, f"{checkpoint}/{STATE_FILE}"))
    except FileNotFoundError:
        return None


def read_sources(plan: MirrorPlan, env: Env) -> dict[int, TopicFacts]:
    """The facts of each pair's topic, by number; without topics of a pattern that have gone.

    Raises:
        UnknownTopic: A topic that was named is not there.
        ClusterFailure: A cluster can't be asked.
    """
    found: dict[int, TopicFacts] = {}
    named = len(plan.named)
    for number, pair in enumerate(plan.pairs):
        try:
            place = plan.sources[pair.place].place
            found[number] = read_topic(place, pair.topic, plan.isolation, env)
        except UnknownTopic:
            if number < named:
                raise
    return found


def check_start(plan: MirrorPlan, checkpoint: str, env: Env, *, create: bool) -> None:
    """Check that a mirror may begin, or go on with its checkpoint. Changes nothing.

    Args:
        plan: The mirror.
        checkpoint: Its folder.
        env: Files and clock.
        create: Whether topics that the target lacks are made.

    Raises:
        UnknownTopic, InvalidRequest, CorruptFile, UnsupportedVersion, ClusterFailure: As a mirror.
    """
    state = read_state(env, checkpoint)
    if state is not None:
        state.ensure_asked(plan)
        return
    check_empty(checkpoint, env)
    plan = with_topics(plan, env)
    check_targets(plan, read_sources(plan, env), env, create=create)


def check_empty(checkpoint: str, env: Env) -> None:
    """Raise InvalidRequest where a new mirror's folder has another query's checkpoint."""
    spark_dir = f"{checkpoint}/{SPARK_DIR}"
    if env.files.exists(spark_dir):
        raise InvalidRequest(
            f"{spark_dir} is there without {STATE_FILE}: not the checkpoint of a mirror; name"
            " another folder"
        )
