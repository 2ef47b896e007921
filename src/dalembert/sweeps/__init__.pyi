from .execute import sweep as sweep
from .plan import Reduction as Reduction
