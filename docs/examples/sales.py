"""Read sales.csv, add up what each shop took, and draw it."""

import matplotlib.pyplot as plt
import pandas as pd

sales = pd.read_csv("sales.csv", parse_dates=["day"])
sales["taken"] = sales["count"] * sales["price"]

by_shop = sales.groupby("shop")["taken"].agg(["sum", "mean", "count"]).round(2)
print(by_shop)
by_shop.to_csv("by_shop.csv")

by_day = sales.groupby("day")["taken"].sum()
plt.figure(figsize=(5, 3))
plt.bar(by_day.index.strftime("%d %b"), by_day)
plt.title("Taken each day")
plt.savefig("by_day.png")
