"""What several papers share; each file is one idea, and no file is a base class of an algorithm."""
