"""Object stores: S3, Google and Azure through obstore, folders, anything else through fsspec.

Owns what is asked of a store and how its failures are told; knows nothing of logs. Settings come
from the usual environment variables (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID` ...) or from options,
and are never part of a URL, of a message or of anything that is sent to workers but options.
See docs/objects.md.
"""

from tidelog.objects.object_files import ObjectFiles, env_for, identity_of, open_store, shared_store
from tidelog.objects.store import (
    NO_MODIFIED,
    ObjectInfo,
    ObjectStore,
    is_url,
    local_path,
    store_options,
)

__all__ = [
    "NO_MODIFIED",
    "ObjectFiles",
    "ObjectInfo",
    "ObjectStore",
    "env_for",
    "identity_of",
    "is_url",
    "local_path",
    "open_store",
    "shared_store",
    "store_options",
]
