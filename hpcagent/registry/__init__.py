"""Tools of a group's own, registered at run time: parsed here, run only in a sandbox, approved by a person."""
