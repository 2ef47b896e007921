"""What pyproject.toml cannot say: a wheel has the examples, and a release knows its address.

`DALEMBERT_ADDRESS` is the address of the repository and `DALEMBERT_REF` the tag that is released; the release workflow
sets both. Links and pictures of the README are absolute then, as package indexes need them. Without them the README is
taken as it is.
"""

import os
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
ADDRESS, REF = os.environ.get("DALEMBERT_ADDRESS", "").rstrip("/"), os.environ.get("DALEMBERT_REF", "HEAD")


class BuildWithExamples(build_py):
    """Copy the folder examples into the package that is built; an editable install finds it beside the sources."""

    def run(self):
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "dalembert", "examples")
            target.mkdir(parents=True, exist_ok=True)
            for path in sorted((ROOT / "examples").glob("*.*")):
                shutil.copyfile(path, target / path.name)


def read_readme() -> str:
    """The README, its links and pictures absolute where the address is known."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if not ADDRESS:
        return text
    place = lambda link: f"{link[1]}{link[2]}({ADDRESS}/{'raw' if link[1] else 'blob'}/{REF}/{link[3]})"
    return re.sub(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)\s]+)\)", place, text)


def find_addresses() -> dict[str, str]:
    """The addresses that a package index shows beside the text."""
    if not ADDRESS:
        return {}
    pages = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}
    return {"Source": ADDRESS, "Issues": f"{ADDRESS}/issues"} | {
        name: f"{ADDRESS}/blob/{REF}/{page}" for name, page in pages.items()
    }


if __name__ == "__main__":
    setup(
        cmdclass={"build_py": BuildWithExamples},
        long_description=read_readme(),
        long_description_content_type="text/markdown",
        project_urls=find_addresses(),
    )
