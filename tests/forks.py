"""The last import of a process that others are forked from."""

import gc

from services.chassis.parent import die_with_parent

die_with_parent()
gc.freeze()  # a collection in a fork would copy all it has inherited
