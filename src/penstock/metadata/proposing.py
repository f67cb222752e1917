"""How the cluster is changed: a caller decides on an image, and the metadata log makes the decision true."""

from collections.abc import Awaitable, Callable, Sequence

from penstock.metadata.commands import AnyCommand
from penstock.metadata.image import ClusterImage
from penstock.metadata.refusal import Refusal

Decide = Callable[[ClusterImage], Sequence[AnyCommand] | Refusal]
"""The commands that are right on an image; none if nothing is left to do. It may be asked again, on a newer
image, if another broker was faster."""
Propose = Callable[[Decide], Awaitable[ClusterImage | Refusal]]
"""The image that holds the commands, or why they were refused."""
