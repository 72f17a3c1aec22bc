"""Topics of a broker, deleted without threads and without the removal of their files."""

from tidelog.server.api.node import Node


def delete_topic(node: Node, name: str) -> list[str]:
    """Delete a topic; return its renamed directories."""
    info = node.log_dir.topic(name)
    directories = node.topics.hide([name])()
    node.topics.notify_deleted(info)
    return directories
