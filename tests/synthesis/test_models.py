"""The graphs that are built without tracing have the parameters of the models that they are named for."""

from __future__ import annotations

from tests.synthesis.vgg import vgg19

from shardwright.synthesis.graph import Graph, check
from shardwright.synthesis.models.transformers import BERT_BASE, GPT2, LLAMA_1B, Transformer, language_model, vision


def parameters(graph: Graph) -> int:
    check(graph)
    nodes = graph.by_name()
    assert graph.gradients.keys() == graph.parameters.keys()
    for name, ref in graph.gradients.items():
        assert nodes[ref.node].outputs[ref.output].shape == nodes[graph.parameters[name].node].outputs[0].shape
    return sum(nodes[ref.node].outputs[0].elements for ref in graph.parameters.values())


def test_parameters() -> None:
    assert parameters(vgg19(batch=8, image=224)) == 143_667_240  # torchvision
    assert parameters(language_model(GPT2, batch=2, seq_len=1024)) == 124_439_808  # transformers' gpt2
    assert parameters(language_model(LLAMA_1B, batch=2, seq_len=128)) == 1_235_814_400  # meta-llama/Llama-3.2-1B
    assert parameters(vision(Transformer(), batch=2)) == 86_567_656  # torchvision's vit_b_16
    # BERT-Base without its pooler, second segment embedding and head's transformation
    assert parameters(language_model(BERT_BASE, batch=2, seq_len=512)) == 108_890_112


def test_blocks_repeat() -> None:
    (repeat,) = language_model(GPT2, batch=2, seq_len=16).repeats
    assert repeat.count == 12 and len({len(block) for block in repeat.occurrences}) == 1
