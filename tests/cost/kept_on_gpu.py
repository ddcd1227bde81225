"""What layers of transformers' models keep for their backward pass on a GPU, counted on fake devices:

    python tests/cost/kept_on_gpu.py QUESTION.json ANSWER.json

The question has configs by name and the tokens of a sample. The answer has for each name the bytes that all layers but
the first two keep, where nothing runs again and where layers do, or the error in place of these.
"""

from __future__ import annotations

import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GPU = {"name": "GPU", "memory_bytes": 1e12, "capability": [9, 0]}


def main(question_file: str, answer_file: str) -> None:
    from shardwright.rehearsal.inside.guard import load_guard

    load_guard()
    import torch
    import transformers
    from torch._subclasses.fake_tensor import FakeTensorMode

    from shardwright.rehearsal.inside import fake_device
    from shardwright.rehearsal.inside.meter import Meter

    warnings.filterwarnings("ignore")
    masks: Any = __import__("transformers.masking_utils").masking_utils
    masks.is_tracing = lambda *_: False
    question = json.loads(Path(question_file).read_text(encoding="utf-8"))
    meter, fake = Meter(), FakeTensorMode(allow_non_fake_inputs=True)
    answer: dict[str, Any] = {}
    fake_device.install(meter, GPU)
    fake_device.choose_kernels(meter)
    with fake, meter:
        for name, fields in question["configs"].items():
            rest = dict(fields)
            config = transformers.CONFIG_MAPPING[rest.pop("model_type")](**rest)
            try:
                with torch.device("cuda"):
                    model = transformers.AutoModel.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
                answer[name] = [kept(model.train(), meter, int(question["tokens"]), again=False)]
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
                answer[name].append(kept(model, meter, int(question["tokens"]), again=True))
            except (RuntimeError, TypeError, ValueError) as error:
                answer[name] = f"{type(error).__name__}: {error}"[:200]
            model = None
    Path(answer_file).write_text(json.dumps(answer), encoding="utf-8")


def kept(model: Any, meter: Any, tokens: int, *, again: bool) -> int:
    """Return the bytes that are live after the last layer and were not after the second: what goes into the first is
    held by what calls the layers."""
    import torch
    from transformers.modeling_layers import GradientCheckpointingLayer

    ends: list[int] = []
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    hooks = [layer.register_forward_hook(lambda *_: ends.append(meter.live_bytes)) for layer in layers]
    # A layer that runs again is hooked inside: what it gives is all that is left of it when the next one begins.
    hooks += [layer.register_forward_pre_hook(lambda *_: ends.append(meter.live_bytes)) for layer in layers if again]
    result = model(input_ids=torch.zeros(1, tokens, dtype=torch.int64, device="cuda"), use_cache=False)
    for hook in hooks:
        hook.remove()
    marks = ends[::2] if again else ends
    del result
    return marks[-1] - marks[1]


if __name__ == "__main__":
    package = types.ModuleType("shardwright")
    package.__path__ = [str(ROOT / "src" / "shardwright")]
    sys.modules["shardwright"] = package
    main(*sys.argv[1:])
