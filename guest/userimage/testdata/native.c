/* An extension module for the stable ABI of CPython (PEP 384), which needs no headers
   of Python: it declares what it uses
   (https://docs.python.org/3.13/c-api/stable.html). */

typedef struct object Object;

struct method {
	const char *name;
	Object *(*call)(Object *self, Object *arg);
	int flags;
	const char *doc;
};

struct module {
	struct {
		long refcount;
		void *type, *init;
		long index;
		void *copy;
	} base;
	const char *name, *doc;
	long size;
	struct method *methods;
	void *slots, *traverse, *clear, *free;
};

extern Object *PyModule_Create2(struct module *, int version);
extern Object *PyLong_FromLong(long);
extern long PyLong_AsLong(Object *);

enum { METH_O = 8, ABI_VERSION = 3 };

static Object *twice(Object *self, Object *arg)
{
	(void)self;
	return PyLong_FromLong(2 * PyLong_AsLong(arg));
}

static struct method methods[] = {{"twice", twice, METH_O, "Twice the number."}, {0, 0, 0, 0}};

static struct module module = {{1, 0, 0, 0, 0}, "native", "Compiled.", -1, methods, 0, 0, 0, 0};

Object *PyInit__native(void) { return PyModule_Create2(&module, ABI_VERSION); }
