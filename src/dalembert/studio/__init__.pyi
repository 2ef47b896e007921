from .server import export as export
from .server import film_of as film_of
from .server import player as player
from .server import open_studio as open_studio
from .server import open_system as open_system
