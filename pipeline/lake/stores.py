"""Files and folders in any store that Hadoop supports: on a disk, in HDFS, in an object store (``s3a://…``)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.errors import InputError, OutputError
from headrace.pipeline.lake.spark_errors import cause_of, is_spark_error
from headrace.quota_callbacks.files import open_without_following, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_RENAMED_BY_COPYING: Final = ("s3", "s3a", "gs")
"""The schemes of object stores, where renaming over a file is deleting and copying, but creating one is one step."""


def is_missing(path: str) -> bool:
    """Return whether a path leads to nothing on this machine, without Spark; ``False`` for other stores (``s3a://…``)."""
    local = path.removeprefix("file://").removeprefix("file:")
    return "://" not in local and not Path(local).exists()


def exists(spark: SparkSession, path: str) -> bool:
    """Return whether there is a file or folder, in any store. Raises `InputError` if the store cannot be reached."""
    with _reading(path):
        return bool(_file_system(spark, path).exists(_path(spark, path)))


def is_folder(spark: SparkSession, path: str) -> bool:
    """Return whether there is a folder. Raises `InputError` if the store cannot be reached."""
    with _reading(path):
        return exists(spark, path) and bool(_file_system(spark, path).getFileStatus(_path(spark, path)).isDirectory())


def files_below(spark: SparkSession, folder: str) -> Iterator[str]:
    """Yield the names, without their folders, of all files in a folder and below it. Raises `InputError`."""
    with _reading(folder):
        found = _file_system(spark, folder).listFiles(_path(spark, folder), True)
        while found.hasNext():
            yield str(found.next().getPath().getName())


def qualified(spark: SparkSession, path: str) -> str:
    """Return the full path with its store, so that different spellings compare equal. Raises `InputError`."""
    with _reading(path):
        return str(_file_system(spark, path).makeQualified(_path(spark, path)).toString())


def read_text(spark: SparkSession, path: str) -> str:
    """Return the contents of a small UTF-8 file in any store. Raises `InputError`."""
    if not exists(spark, path):
        raise InputError(f"{path} does not exist")
    if is_folder(spark, path):
        raise InputError(f"{path} is a folder; expected a file")
    with _reading(path):
        stream = _file_system(spark, path).open(_path(spark, path))
        try:
            content: bytes = stream.readAllBytes()
        finally:
            stream.close()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8") from error


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a small file atomically: a reader sees the old contents or the new. Raises `OutputError`."""
    draft = path + ".draft"
    here = _local(spark, path)
    with _writing(path):
        if here is not None:
            here.parent.mkdir(parents=True, exist_ok=True)
            here.with_name(f".{here.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the old contents
            with open(f"{here}.draft", "w", encoding="utf-8", opener=open_without_following) as file:
                file.write(text)
            Path(f"{here}.draft").replace(here)
            return
        if _uri(spark, path).getScheme() in _RENAMED_BY_COPYING:
            _create(spark, path, text)
            return
        _create(spark, draft, text)
        _rename_over(spark, draft, path)


def remove(spark: SparkSession, path: str) -> None:
    """Remove a file, or a folder with its contents; do nothing if it does not exist. Raises `OutputError`."""
    with _writing(path):
        _file_system(spark, path).delete(_path(spark, path), True)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_spark_error(error):
            raise InputError(f"cannot reach {path}: {_describe_store_error(error)}") from error
        raise


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {reason_of(error)}") from error
    except Exception as error:
        if is_spark_error(error):
            raise OutputError(f"cannot write {path}: {_describe_store_error(error)}") from error
        raise


def _describe_store_error(error: Exception) -> str:
    cause = cause_of(error)
    if "ClassNotFoundException" in str(error):
        cause += "; Spark lacks the jars of this store: for s3a, --packages org.apache.hadoop:hadoop-aws:3.4.1"
    return cause


def _local(spark: SparkSession, path: str) -> Path | None:
    """Return the path of a file on this machine; ``None`` for other stores."""
    uri = _uri(spark, path)
    return Path(uri.getPath()) if uri.getScheme() == "file" else None


def _uri(spark: SparkSession, path: str) -> Any:
    with _reading(path):
        return _file_system(spark, path).makeQualified(_path(spark, path)).toUri()


def _create(spark: SparkSession, path: str, text: str) -> None:
    stream = _file_system(spark, path).create(_path(spark, path), True)
    stream.write(bytearray(text.encode()))
    stream.close()  # not after an error: an object store would publish what was written


def _rename_over(spark: SparkSession, draft: str, path: str) -> None:
    """Rename atomically where the store can, as Spark does for its checkpoints; otherwise remove the old file first."""
    source, target = _path(spark, draft), _path(spark, path)
    jvm = _jvm(spark)
    rename = getattr(jvm.org.apache.hadoop.fs, "Options$Rename")
    options = _gateway(spark).new_array(rename, 1)
    options[0] = rename.OVERWRITE
    try:
        context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(target.toUri(), _configuration(spark))
    except Exception as error:
        if "UnsupportedFileSystemException" not in str(error):
            raise
        system = _file_system(spark, path)
        system.delete(target, False)
        if not system.rename(source, target):
            raise OutputError(f"cannot write {path}") from error
        return
    context.rename(source, target, options)


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm  # noqa: SLF001 -- Hadoop's file systems have no Python API


def _gateway(spark: SparkSession) -> Any:
    return spark.sparkContext._gateway  # noqa: SLF001


def _path(spark: SparkSession, path: str) -> Any:
    return _jvm(spark).org.apache.hadoop.fs.Path(path)


def _file_system(spark: SparkSession, path: str) -> Any:
    return _path(spark, path).getFileSystem(_configuration(spark))


def _configuration(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
