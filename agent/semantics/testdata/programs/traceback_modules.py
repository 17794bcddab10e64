import sys

sys.path.append("lib")
import package.inner

package.inner.call(lambda: package.inner.fail(0))
