"""What the server of test processes imports before it forks them (`forked`): also what PyTorch would import within each."""

import torch._dynamo as torch_dynamo  # noqa: F401
import torch.distributed as torch_distributed  # noqa: F401
import torch.fx.experimental.symbolic_shapes as imported_by_backward  # noqa: F401

import shardwright.cli.elastic as kept  # noqa: F401
import shardwright.cli.train as trained  # noqa: F401
import shardwright.runtime.job.train as begun  # noqa: F401
import shardwright.runtime.recovery.run as run  # noqa: F401
import shardwright.runtime.recovery.worker.training as worked  # noqa: F401
import shardwright.serving.warm as served  # noqa: F401
import shardwright.spmd.training as traced  # noqa: F401
import tests.runtime.workers as workers  # noqa: F401
import tests.warm as warm  # noqa: F401
