"""Extensions of decompops: one of each kind of object that another package may define."""

from .channel import ChannelPoisson as ChannelPoisson
from .descent import SteepestDescent as SteepestDescent
from .fisher import Fisher as Fisher
from .hartley import Hartley as Hartley
from .lines import LineFFT as LineFFT
from .potential import Potential as Potential
from .ring import Ring as Ring
from .shift import Shift as Shift
from .whole import Whole as Whole
