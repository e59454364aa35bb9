"""Character-separated formats: one line a sample, without quoting."""

from streaming.base.format.xsv.reader import CSVReader, TSVReader, XSVReader
from streaming.base.format.xsv.writer import CSVWriter, TSVWriter, XSVWriter

__all__ = ["CSVReader", "CSVWriter", "TSVReader", "TSVWriter", "XSVReader", "XSVWriter"]
