"""unissl: image classifiers from a handful of labels and many unlabelled images of unknown class mix."""

__version__ = "0.1.0"
