"""Imports that happen once, before the processes of a stack are forked."""

import gc

import pytest  # noqa: F401  which a fork finds in its main module

from services.chassis.parent import die_with_parent
from tests.chaos import processes  # noqa: F401

die_with_parent()
gc.freeze()  # a collection in a fork would copy all it has inherited
