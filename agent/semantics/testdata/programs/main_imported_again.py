if __name__ == "__main__":
    import importlib
    import main_imported_again as again

    print(again.__name__, again.__file__, again.__cached__, again.__spec__.origin, again is not __import__("__main__"))
    importlib.reload(again)
    try:
        importlib.reload(__import__("__main__"))
    except ImportError as error:
        print(error)
else:
    print("imported", __name__)
