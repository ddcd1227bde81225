"""The plan: what it is, when it is legal, and how it is written to a file."""

from shardwright.plan.check import check as check
from shardwright.plan.document import from_document as from_document
from shardwright.plan.document import load_plan as load_plan
from shardwright.plan.document import save as save
from shardwright.plan.document import to_document as to_document
from shardwright.plan.plan import Plan as Plan
from shardwright.plan.ranking import Ranking as Ranking
