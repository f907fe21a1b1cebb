"""Around whatever looks at operators one by one: code of torch.compile runs uncompiled inside, and is kept for after.

Called by the instruments of this package that are dispatch modes. torch compiles no function that is called under one,
and never again calls what it had compiled of it before: every step after such a look would be an eager one.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def uncompiled() -> AbstractContextManager[object]:
    """Context manager. Where nothing was compiled in this process it does nothing."""
    # Without it there is no compiled code; importing it costs seconds.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    import torch

    stance: Any = torch.compiler.set_stance
    context: AbstractContextManager[object] = stance("force_eager")
    return context
