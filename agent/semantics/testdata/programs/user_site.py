import site, sys

print(site.ENABLE_USER_SITE, site.USER_SITE, site.USER_BASE, site.USER_SITE in sys.path)
try:
    import of_the_user

    print(of_the_user.__file__)
except ImportError as error:
    print(error)
