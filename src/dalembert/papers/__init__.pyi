from .exhibits import FIGURES as FIGURES
from .exhibits import PAPERS as PAPERS
from .exhibits import Reproduction as Reproduction
from .exhibits import reproduce_exhibits as reproduce_exhibits
from .exhibits import select_exhibits as select_exhibits
from .gallery import Data as Data
from .gallery import Exhibit as Exhibit
from .gallery import Paper as Paper
