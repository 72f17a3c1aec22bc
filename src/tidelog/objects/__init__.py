"""Access to S3, Google and Azure through obstore, to folders, and to other URLs through fsspec.

The package defines the operations on a store and the errors of stores. The package does not depend
on logs. Settings of a store come from the usual environment variables (`AWS_ENDPOINT_URL`,
`AWS_ACCESS_KEY_ID`, ...) or from options. Credentials never appear in a URL or an error message.
Spark workers receive the options, but not the driver's environment variables. See docs/objects.md.
"""

from tidelog.objects.object_files import ObjectFiles, env_for, identity_of, open_store, shared_store
from tidelog.objects.store import (
    NO_MODIFIED,
    ObjectInfo,
    ObjectStore,
    is_url,
    local_path,
)
