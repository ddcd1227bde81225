"""Models of the sizes that tests can afford: the ones that HAP was measured on, Hugging Face's, and one of everything.

Each builder returns a module, a batch of inputs and a loss, the three things that `shardwright.spmd` is given. The
batches hold 6 samples, which no two, three or four ranks of unequal speed share evenly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]
Case = tuple[nn.Module, Batch, Loss]

BATCH, SEQUENCE, CLASSES, VOCABULARY = 6, 10, 7, 48


def classified(module: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy of a classifier of images or texts."""
    return nn.functional.cross_entropy(module(batch["inputs"]), batch["labels"])


def next_token(module: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy over all positions of a module that returns logits; -100 marks what does not count."""
    logits = module(batch["tokens"])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def language_model(module: nn.Module, batch: Batch) -> Tensor:
    """Return the loss that a model of `transformers` computes itself."""
    loss: Tensor = module(input_ids=batch["tokens"], labels=batch["labels"], use_cache=False).loss
    return loss


class Vgg19(nn.Module):
    """VGG-19 (Simonyan and Zisserman, 2014), its channels divided by `narrower`."""

    LAYERS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0)

    def __init__(self, narrower: int, hidden: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in self.LAYERS:
            if width == 0:
                layers.append(nn.MaxPool2d(2, 2))
                continue
            layers += [nn.Conv2d(channels, width // narrower, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width // narrower
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.classifier = nn.Sequential(
            nn.Linear(channels, hidden), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(hidden, CLASSES),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(images)).flatten(1))


class Attention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class Experts(nn.Module):
    """GShard's layer of experts: the two best for each token, up to `capacity` tokens of a sample for each expert."""

    def __init__(self, width: int, hidden: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.experts, self.capacity = experts, capacity
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        chances = self.gate(x).softmax(-1)
        first = nn.functional.one_hot(chances.argmax(-1), self.experts).to(x.dtype)
        second = nn.functional.one_hot((chances * (1 - first)).argmax(-1), self.experts).to(x.dtype)
        place_first = first.cumsum(1) * first - 1
        place_second = (second.cumsum(1) + first.sum(1, keepdim=True)) * second - 1
        slots = torch.arange(self.capacity, device=x.device, dtype=x.dtype)
        routes = [(place_first, first), (place_second, second)]
        combine = sum(
            ((chances * chosen).unsqueeze(-1) * (place.unsqueeze(-1) == slots).to(x.dtype) for place, chosen in routes),
            start=torch.zeros((), device=x.device),
        )
        dispatch = (combine > 0).to(x.dtype)
        given = torch.einsum("bsec,bsm->ebcm", dispatch, x)
        done = torch.einsum(
            "ebch,ehm->ebcm", nn.functional.relu(torch.einsum("ebcm,emh->ebch", given, self.up)), self.down
        )
        return torch.einsum("bsec,ebcm->bsm", combine, done)


class Block(nn.Module):
    """A transformer's layer, normalised before or after."""

    def __init__(self, width: int, heads: int, dropout: float, feed: nn.Module, first_norm: bool) -> None:
        super().__init__()
        self.first_norm = first_norm
        self.attention = Attention(width, heads, dropout)
        self.feed = feed
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.first_norm:
            x = x + self.dropout(self.attention(self.norms[0](x)))
            return x + self.dropout(self.feed(self.norms[1](x)))
        x = self.norms[0](x + self.dropout(self.attention(x)))
        return self.norms[1](x + self.dropout(self.feed(x)))


def feed_forward(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class VisionTransformer(nn.Module):
    """ViT (Dosovitskiy et al., 2020): patches, a class token, positions, layers normalised first."""

    def __init__(self, image: int, patch: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(
            *(Block(width, heads, 0.0, feed_forward(width, 4 * width), first_norm=True) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


class Bert(nn.Module):
    """BERT (Devlin et al., 2018) with a masked-language head; every second layer has experts if there are any."""

    def __init__(self, width: int, heads: int, layers: int, dropout: float, experts: int = 0) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(SEQUENCE, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        feeds = [
            Experts(width, 2 * width, experts, 3) if experts and layer % 2 else feed_forward(width, 4 * width)
            for layer in range(layers)
        ]
        self.layers = nn.ModuleList([Block(width, heads, dropout, feed, first_norm=False) for feed in feeds])
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.norm(self.words(tokens) + self.positions(positions)))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Everything(nn.Module):
    """A module that no list of models has: convolution, BatchNorm, GRU, dropout and tied weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.mix = nn.Conv1d(width, width, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm1d(width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        x = nn.functional.relu(self.norm(self.mix(x.transpose(1, 2)))).transpose(1, 2)
        x, _ = self.memory(self.dropout(x))
        return self.head(self.dropout(x))


def images(size: int) -> Batch:
    return {"inputs": torch.randn(BATCH, 3, size, size), "labels": torch.randint(CLASSES, (BATCH,))}


def tokens() -> Batch:
    labels = torch.randint(VOCABULARY, (BATCH, SEQUENCE))
    labels[0, :4] = -100
    return {"tokens": torch.randint(VOCABULARY, (BATCH, SEQUENCE)), "labels": labels}


def vgg19() -> Case:
    return Vgg19(narrower=32, hidden=24), images(32), classified


def vit() -> Case:
    return VisionTransformer(image=12, patch=4, width=24, heads=4, layers=2), images(12), classified


def bert() -> Case:
    return Bert(width=24, heads=4, layers=2, dropout=0.1), tokens(), next_token


def bert_moe() -> Case:
    return Bert(width=24, heads=4, layers=2, dropout=0.1, experts=5), tokens(), next_token


def everything() -> Case:
    return Everything(12), tokens(), next_token


def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=SEQUENCE, n_embd=24, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config), tokens(), language_model


def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=SEQUENCE,
    )  # fmt: skip
    return LlamaForCausalLM(config), tokens(), language_model


def mixtral() -> Case:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=SEQUENCE, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    return MixtralForCausalLM(config), tokens(), language_model


CASES: dict[str, Callable[[], Case]] = {
    "vgg19": vgg19, "vit": vit, "bert": bert, "bert-moe": bert_moe, "everything": everything,
    "gpt2": gpt2, "llama": llama, "mixtral": mixtral,
}  # fmt: skip


def build(name: str) -> Case:
    """Return the case of this name, the same every time, ready for training."""
    torch.manual_seed(7)
    module, batch, loss = CASES[name]()
    return module.train(), batch, loss
