"""What the server of test processes imports before it forks them: also what PyTorch would import within each."""

import tests.runtime.workers as workers  # noqa: F401
import torch._dynamo as torch_dynamo  # noqa: F401
import torch.distributed as torch_distributed  # noqa: F401
import torch.fx.experimental.symbolic_shapes as imported_by_backward  # noqa: F401
