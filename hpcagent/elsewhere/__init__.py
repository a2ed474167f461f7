"""Coordinators that go on elsewhere: in the background of this machine, in a job of their own."""
