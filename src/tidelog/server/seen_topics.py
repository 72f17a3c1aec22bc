"""Which topics who asks may know of."""

from collections.abc import Callable

from tidelog.server.requests import RequestContext


def sees_topics(context: RequestContext) -> Callable[[str], bool]:
    """Whether a client may describe a topic; all where nobody is asked for rights."""
    authorizer = context.node.authorizer
    if authorizer is None:
        return lambda _name: True
    from tidelog.server.security.authorizer import Client, Operation, ResourceType

    who = Client(context.connection.principal, context.connection.host)
    return lambda name: authorizer.may(who, Operation.DESCRIBE, ResourceType.TOPIC, name)
