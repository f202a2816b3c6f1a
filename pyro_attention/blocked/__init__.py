"""Blocked attention, whose weights are never held: made block by block, and again in the backward pass.

A wing of the library: it builds on the core, and the core does not know of it. Importing it registers its KL.
"""

from pyro_attention.blocked.attention import attend_blocked
from pyro_attention.blocked.distributions import BlockedValue
from pyro_attention.blocked.multihead import BlockedMultiheadAttention

__all__ = ["BlockedMultiheadAttention", "BlockedValue", "attend_blocked"]
