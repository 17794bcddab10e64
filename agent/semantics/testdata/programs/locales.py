import datetime, locale, os, sys, time, zoneinfo

print(locale.setlocale(locale.LC_ALL), locale.getlocale(), locale.getpreferredencoding(), locale.getencoding(), locale.nl_langinfo(locale.CODESET), locale.localeconv())
print(time.tzname, time.timezone, time.daylight, time.localtime(0), datetime.datetime.fromtimestamp(0).astimezone(), time.strftime("%c %x %p", time.gmtime(0)))
try:
    locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
except locale.Error as error:
    print(error)
for name in "UTC", "Europe/Berlin":
    try:
        print(datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo(name)).isoformat())
    except zoneinfo.ZoneInfoNotFoundError as error:
        print(error)
os.environ["TZ"] = "CET-1CEST"
time.tzset()
print(time.tzname, time.localtime(0).tm_hour, "ä".upper(), os.fsencode("ä"), open("ä\udcff", "w").name.encode("utf-8", "surrogateescape"), ascii(os.listdir(".")), sys.flags.utf8_mode)
