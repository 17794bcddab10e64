package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pybox/pybox/docs"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/receipts"
	"github.com/pybox/pybox/host/show"
)

// newest is the word for the receipt of the run that was started last.
const newest = "last"

func receiptCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "receipt",
		Short: "Look at the receipts of past runs",
		Long: `Every run leaves a receipt: what was configured, what was seen from outside the
box, what the program printed (its amount and digest), and what is not known. The
newest are kept in $PYBOX_HOME/receipts; [receipts] keep in config.toml says how
many. These commands only read them, and need no VM.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(receiptList(), receiptShow(), receiptSchema())
	return c
}

func receiptList() *cobra.Command {
	var asJSON bool
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "List the newest receipts", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 1 {
				return usageError{errors.New("--number: want 1 or more")}
			}
			store, err := viewReceipts()
			if err != nil {
				return err
			}
			list, err := store.List(limit)
			if err != nil {
				return err
			}
			w := c.OutOrStdout()
			switch {
			case asJSON:
				return printJSON(w, api.Receipts{Receipts: list})
			case len(list) == 0:
				fmt.Fprintln(c.ErrOrStderr(), "pybox: no receipts are kept")
			default:
				show.Receipts(w, list, receiptStyle(w))
			}
			return nil
		},
	}
	c.Flags().IntVarP(&limit, "number", "n", 20, "how many of the newest to list")
	c.Flags().BoolVar(&asJSON, "json", false, "print them as JSON")
	return c
}

func receiptShow() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show ID|PREFIX|last",
		Short: "Show one receipt: by the run's id, the beginning of it, or the newest",
		Example: `  pybox receipt show last
  pybox receipt show 5319e024 --json`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{fmt.Errorf("'%s' wants one id, the beginning of one, or %q; 'pybox receipt list' lists them", c.CommandPath(), newest)}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			store, err := viewReceipts()
			if err != nil {
				return err
			}
			id, err := findReceipt(store, args[0])
			if err != nil {
				return err
			}
			r, err := store.Get(id)
			if err != nil {
				return err
			}
			w := c.OutOrStdout()
			if asJSON {
				return printJSON(w, r)
			}
			show.Receipt(w, r, receiptStyle(w))
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print it as JSON, as 'pybox receipt schema' describes it")
	return c
}

// findReceipt gives the id that a person means.
func findReceipt(store *receipts.Store, word string) (string, error) {
	if word == newest {
		if id, ok := store.Newest(); ok {
			return id, nil
		}
		return "", errors.New("no receipts are kept")
	}
	id, err := store.Find(word)
	switch {
	case errors.Is(err, receipts.ErrBadID):
		return "", usageError{err}
	case errors.Is(err, receipts.ErrNotFound):
		return "", fmt.Errorf("%w; 'pybox receipt list' lists those that are", err)
	}
	return id, err
}

func receiptSchema() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of a receipt", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(docs.ReceiptSchema)
			return err
		},
	}
}

// viewReceipts opens the kept receipts for reading. It makes nothing: where there
// is no state directory there are no receipts.
func viewReceipts() (*receipts.Store, error) {
	dir, err := home.Locate(getenv)
	if err != nil {
		return nil, err
	}
	if _, err := home.OpenExisting(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return receipts.View(filepath.Join(dir, "receipts"))
}

// receiptStyle is how a receipt is laid out on w.
func receiptStyle(w io.Writer) show.Style {
	if c, ok := w.(*checked); ok {
		w = c.w
	}
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return show.Style{}
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		width = 0
	}
	return show.Style{Width: width, Color: getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"}
}
