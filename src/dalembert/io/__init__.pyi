from .atomic import atomic_path as atomic_path
from .config import Job as Job
from .config import load_job as load_job
from .config import parse_job as parse_job
from .dataset import load_run as load_run
from .dataset import open_dataset as open_dataset
from .dataset import save_run as save_run
from .dataset import to_xarray as to_xarray
