"""Tell, as one JSON object, what works in the image "data"."""

import io
import json
import os
import sys

facts = {}


def fact(f):
    try:
        facts[f.__name__] = f()
    except BaseException as error:
        facts[f.__name__] = f"{type(error).__name__}: {error}"


@fact
def pictures():
    """What is drawn, in the formats that need other modules each."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots()
    axes.plot([1, 4, 9], label="squares")
    axes.set_title("Zażółć gęślą jaźń $x^2$")
    axes.legend()
    starts = {}
    for kind in "png", "svg", "pdf":
        out = io.BytesIO()
        figure.savefig(out, format=kind)
        starts[kind] = out.getvalue()[:4].decode("latin-1")
    return [starts[k] for k in ("png", "svg", "pdf")] + [plt.get_backend()]


@fact
def fonts():
    """Matplotlib took the image's list of fonts, which it can also change."""
    import matplotlib as mpl

    folder = mpl.get_cachedir()
    names = os.listdir(folder)
    with open(os.path.join(folder, names[0]), "rb+") as mine, open("/usr/share/pybox/tmp/matplotlib/" + names[0], "rb") as image:
        same = mine.read() == image.read()
    return [folder, len(names), same]


@fact
def not_compiled():
    """Modules that have no byte code in the image."""
    return sorted(
        name
        for name, module in sys.modules.items()
        if name != "__main__"
        and (spec := getattr(module, "__spec__", None))
        and str(spec.origin).endswith(".py")
        and not (spec.cached and os.path.exists(spec.cached))
    )


@fact
def tables():
    import pandas as pd

    frame = pd.read_csv(io.StringIO("name,n\nb,2\na,1\nb,5\n"))
    return [frame.groupby("name")["n"].sum().to_dict(), frame["n"].median(), frame.to_csv(index=False).count("\n")]


@fact
def dates():
    import zoneinfo

    import pandas as pd

    summer = pd.Timestamp("2026-07-01 12:00", tz="UTC")
    hours = pd.date_range("2026-03-29", periods=4, freq="h", tz="Europe/Berlin")  # the clock goes forward
    return [
        str(summer.tz_convert("Europe/Berlin")),
        str(summer.tz_convert("US/Eastern")),
        str(summer.tz_convert(zoneinfo.ZoneInfo("Asia/Kolkata"))),
        [h.hour for h in hours],
    ]


@fact
def testing():
    """numpy.testing needs a file of numpy's own tests."""
    import numpy.testing as t

    t.assert_allclose([1.0, 2.0], [1.0, 2.0 + 1e-12])
    return True


@fact
def read_only():
    """None of the places that these libraries are in can be written to."""
    import numpy, pandas

    bad = []
    for folder in os.path.dirname(numpy.__file__), os.path.dirname(pandas.__file__), "/usr/share/matplotlib", "/etc", "/usr/share/pybox":
        try:
            open(os.path.join(folder, "x"), "w").close()
            bad.append(folder)
        except OSError as error:
            if error.errno != 30:  # EROFS
                bad.append(str(error))
    return bad


@fact
def threads():
    return [os.environ[name] for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")]


print(json.dumps(facts))
