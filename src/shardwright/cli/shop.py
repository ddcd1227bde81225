"""`shardwright shop`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from shardwright.cli import options
from shardwright.cli.destination import deliver, require_writable, tell
from shardwright.cli.inputs import dollars, hours, job_of, length_of_documents, part
from shardwright.cli.measurements import Calibration, Profiles, efficiency_of, model_of, read_measurements
from shardwright.cli.output import progress, terminal_width, write_json
from shardwright.commands import option
from shardwright.errors import bad, suggestion
from shardwright.records import record

if TYPE_CHECKING:
    from shardwright.spec.model import Model
    from shardwright.spec.offers import Offers

USUAL_BATCH_TOKENS, USUAL_SEQ_LEN = 1 << 22, 4096  # Llama 2's (arXiv 2307.09288, §2.2)


@record
class OfferOptions:
    """What can be rented."""

    offers: Annotated[
        Path | None,
        option(metavar="FILE", help="What can be rented (docs/how-to-shop.md); without it, the dated price table."),
    ] = None
    gpu: Annotated[
        tuple[str, ...], option(metavar="GPU", help="Only offers of this GPU, e.g. H100-SXM; may be repeated.")
    ] = ()
    market: Annotated[
        tuple[str, ...],
        option(metavar="NAME", help="Only on-demand, spot or reserved; may be repeated."),
    ] = ()
    provider: Annotated[str | None, option(metavar="NAME", help="Only this provider of the price table, e.g. aws.")] = (
        None
    )
    region: Annotated[
        str | None, option(metavar="NAME", help="Only this region of the price table, e.g. us-east-1.")
    ] = None
    max_gpus: Annotated[
        int | None,
        option(metavar="N", help="Most GPUs of one type of the price table; by default 1024, 64 on spot."),
    ] = None
    prices: options.Prices = None


@record
class ShopOptions:
    """The search."""

    deadline: Annotated[
        str | None, option(metavar="TIME", help="Longest run: 30d, 720h or hours. Picks the cheapest in time.")
    ] = None
    budget: Annotated[str | None, option(metavar="USD", help="Most dollars: 2M, 500k. Picks the fastest for it.")] = (
        None
    )
    sure: options.Sure = None
    fit: options.Fit = 0.9
    mixes: Annotated[
        int | None,
        option(
            metavar="N",
            help="Mixes of two offers to search, the most promising; by default one, of all machines of two offers "
            "with up to 256 GPUs together.",
        ),
    ] = None
    indifference: options.Indifference = "1%"
    settings: options.Pins = ()


def shop(
    tokens: Annotated[str, option(metavar="COUNT", help="Tokens of the whole run, e.g. 300B or 1T.")],
    rent: OfferOptions,
    asked: ShopOptions,
    training: options.TrainingOptions,
    sequence: options.SequenceOptions,
    model: options.Model = None,
    accept_guess: options.AcceptGuess = False,
    global_batch: Annotated[
        int | None, option(metavar="N", help="Samples of one optimizer step; by default about 4 M tokens.")
    ] = None,
    seq_len: Annotated[
        int | None, option(metavar="N", help="Tokens of one sample; by default 4096, or the model's limit.")
    ] = None,
    precision: options.Precision = None,
    fp8_recipe: options.Fp8Recipe = None,
    mask_documents: options.MaskDocuments = None,
    framework: options.OneFramework = "megatron",
    profile: Profiles = (),
    calibration: Calibration = None,
    out: Annotated[
        Path | None, option("--out", "-o", metavar="FILE", help="Write the plan of the choice to this file.")
    ] = None,
    details: options.Details = False,
    json: options.AsJson = False,
) -> None:
    """Find out which GPUs to rent, and how many: the whole front of training time, dollars and risk, each point
    with its plan. Offers come from a file, or from the dated price table.

    Examples:

    \b
      shardwright shop --model llama-2-70b --offers offers.yaml --tokens 1T --deadline 30d
      shardwright shop --model llama-3.1-8b --gpu H100-SXM --gpu A100-SXM-80 --tokens 300B --budget 50k
      shardwright shop --model llama-3.1-70b --adapter qlora:16 --framework fsdp --tokens 50M --global-batch 32 \\
          --deadline 1d
      shardwright shop --model ./config.json --offers offers.yaml --tokens 2T --json
    """
    from shardwright.plans.document import dumps
    from shardwright.reports.documents.shop import shop_document
    from shardwright.reports.text.shop import chosen, shop_screen, shop_text
    from shardwright.search.objective import MOST_INDIFFERENCE
    from shardwright.search.space.axes import parse_pins
    from shardwright.spec.cluster import Cluster
    from shardwright.trainers.shop import shop as search

    require_writable(out, [model, rent.offers, rent.prices, *profile, calibration], json=json)
    measurements = read_measurements(profile, calibration)
    precision = measurements.precision(precision)
    described = model_of(model, measurements, precision, accept_guess=accept_guess)
    if seq_len is None and measurements.layers:
        seq_len = measurements.layers.seq_len
    length, batch, assumed = _sizes(described, seq_len, global_batch, training.preference)
    job = job_of(
        training,
        sequence,
        global_batch=batch,
        seq_len=length,
        tokens=tokens,
        precision=precision,
        fp8_recipe=fp8_recipe,
        document_tokens=length_of_documents(mask_documents, length),
        framework=framework,
        budget_dollars=dollars(asked.budget, "--budget"),
        deadline_hours=hours(asked.deadline, "--deadline"),
    )
    on_offer = _offers(rent)
    every = Cluster(pools=tuple(offer.pool for offer in on_offer.offers))
    efficiency = efficiency_of(measurements, described, every, job)
    space = parse_pins(asked.settings)
    with progress(f"shopping for {described.name}"):
        result = search(
            described,
            on_offer,
            job,
            space=space,
            fit=asked.fit,
            mixes=asked.mixes,
            efficiency=efficiency,
            sure=asked.sure,
            indifference=part(asked.indifference, "--indifference", most=MOST_INDIFFERENCE),
        )
    if out is not None and result.front and not result.infeasible:
        deliver(dumps(result.front[chosen(result)].plan), out)
    if json:
        write_json(shop_document(result, assumed))
    elif details:
        tell(shop_text(result, described, job, assumed, terminal_width()), beside=out)
    else:
        from shardwright.trainers.runs import runners

        run_by = None if result.infeasible else runners(result.front[chosen(result)].plan)
        tell(shop_screen(result, described, job, assumed, out, terminal_width(), run_by), beside=out)
    if result.infeasible:
        raise Exit(3)


def _sizes(
    model: Model, seq_len: int | None, global_batch: int | None, preference: str | None
) -> tuple[int, int, tuple[str, ...]]:
    """Return sequence length and global batch, the usual ones where not given, and words that say so."""
    from shardwright.spec.preference import parse_preference

    assumed = []
    if seq_len is None:
        seq_len = min(USUAL_SEQ_LEN, model.max_position)
        assumed.append(f"sequence length {seq_len} (--seq-len)")
    if global_batch is None:
        sequences = 1 if preference is None else parse_preference(preference).passes.trained
        global_batch = max(USUAL_BATCH_TOKENS // (max(seq_len, 1) * sequences), 1)
        assumed.append(f"global batch {global_batch}, about 4 M tokens as for Llama 2 (--global-batch)")
    return seq_len, global_batch, tuple(assumed)


def _offers(rent: OfferOptions) -> Offers:
    """Return the offers of a file, or of the price table, narrowed to GPU types and markets."""
    from shardwright.spec.catalog.prices import load_prices, table_prices
    from shardwright.spec.offers import MARKETS, MOST_GPUS
    from shardwright.spec.read.offers import load_offers, narrowed, offers_from_prices

    for word in rent.market:
        if word not in MARKETS:
            raise bad(f"--market {word}", "there is no such market", suggestion(word, MARKETS))
    rows = load_prices(rent.prices) if rent.prices else ()
    if rent.offers is not None:
        table_alone = {"--provider": rent.provider, "--region": rent.region, "--max-gpus": rent.max_gpus}
        for flag, value in table_alone.items():
            if value is not None:
                raise bad(flag, "narrows the price table, not an offers file", f"leave {flag} or --offers out")
        return narrowed(load_offers(rent.offers, prices=rows), rent.gpu, rent.market)
    if rent.max_gpus is not None and rent.max_gpus < 1:
        raise bad("--max-gpus", f"{rent.max_gpus} GPUs cannot be rented", f"{MOST_GPUS} is the default")
    table = table_prices(provider=rent.provider, region=rent.region, user_prices=rows)
    return narrowed(offers_from_prices(table, gpus=rent.gpu, most_gpus=rent.max_gpus), rent.gpu, rent.market)
