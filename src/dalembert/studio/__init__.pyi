from .server import export as export
from .server import open_studio as open_studio
