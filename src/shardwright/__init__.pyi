"""The public names, once: type checkers read them here, and `__init__` loads each from here when it is first used."""

from .cost.calibrate import Measured as Measured
from .cost.calibrate import calibrate as calibrate
from .cost.layers.measured import measured_layers as measured_layers
from .cost.measured.machine import profiled as profiled
from .cost.site.calibrated import calibrated as calibrated
from .cost.site.file import load_calibration as load_calibration
from .diagnosis.diagnose import diagnose as diagnose
from .discovery.discover import discover as discover
from .errors import SpecError as SpecError
from .exporters.megatron.export import to_megatron as to_megatron
from .exporters.nearest import nearest_plan as nearest_plan
from .measure.run import profile as profile
from .plans.check import check as check
from .plans.document import load_plan as load_plan
from .plans.document import save as save
from .plans.plan import Plan as Plan
from .plans.ranking import Ranking as Ranking
from .reports.html.report import report as report
from .reports.svg.timeline import draw as draw
from .runs.read import read_run as read_run
from .runs.state import good_state as good_state
from .search.planner import predict as predict
from .search.replan import replan as replan
from .search.space.axes import Space as Space
from .spec.cluster import Cluster as Cluster
from .spec.job import Job as Job
from .spec.model import Model as Model
from .spec.read.cluster import load_cluster as load_cluster
from .spec.read.job import make_job as make_job
from .spec.read.layer_profile import load_layer_profile as load_layer_profile
from .spec.read.machine_profile import load_profile as load_profile
from .spec.read.model import load_model as load_model
from .spec.read.offers import load_offers as load_offers
from .trainers.fit import fit as fit
from .trainers.plan import evaluate as evaluate
from .trainers.plan import plan as plan
from .trainers.runs import export as export
from .trainers.runs import support as support
from .trainers.shop import shop as shop
from .validation.validate import validate as validate

__all__: list[str]
__version__: str
