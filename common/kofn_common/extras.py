"""Packages that only parts of kofn need, and the extra of `pip install 'kofn[EXTRA]'` that installs each package."""

EXTRAS = {
    "cryptography": "certs",
    "dask_jobqueue": "cluster",
    "distributed": "cluster",
    "httpx2": "jobs",
    "jinja2": "plots",
    "kopf": "jobs",
    "lightkube": "jobs",
    "matplotlib": "plots",
    "ml_dtypes": "torch",
    "mpi4py": "mpi",
    "prometheus_client": "web",
    "pyarrow": "parquet",
    "scapy": "scapy",
    "seaborn": "plots",
    "starlette": "web",
    "tensorboardX": "tensorboard",
    "torch": "torch",
    "uvicorn": "web",
    "yaml": "jobs",
}


def remedy(error: ModuleNotFoundError) -> str:
    """Return the missing package and how to install it, in one line; raise `error` again if no extra installs it."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise error
    return f"{package} is not installed: pip install 'kofn[{EXTRAS[package]}]'"
