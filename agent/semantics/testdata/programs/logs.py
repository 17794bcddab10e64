import logging, logging.handlers, sys, warnings

logging.warning("root's")
logging.getLogger("x").error("of %s", "x", stack_info=True)
logging.info("not shown")
logging.basicConfig(force=True, format="%(levelname)s %(name)s %(filename)s:%(lineno)d %(funcName)s %(module)s %(processName)s %(threadName)s %(message)s", level=1)
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("failed")
logging.captureWarnings(True)
warnings.warn("captured")
logging.getLogger("y").debug("wrong %d", "text")
logging.lastResort = None
