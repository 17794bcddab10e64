// Runs a program and shows what it prints as it does so.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
)

// event has those members of an event that are used here. Bytes come as base64 in JSON.
type event struct {
	Event, Stream string
	Text          string
	Base64        []byte
	Problem       struct{ Detail string }
	Receipt       struct {
		Run    struct{ ID string }
		Ending struct{ How string }
	}
}

func main() {
	home := os.Getenv("PYBOX_HOME")
	if home == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			log.Fatal(err)
		}
		home = filepath.Join(user, ".pybox")
	}
	daemon := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(home, "pybox.sock"))
		},
	}}
	if err := run(daemon, "for i in range(3): print('line', i, flush=True)"); err != nil {
		log.Fatal(err)
	}
}

func run(daemon *http.Client, program string) error {
	body, err := json.Marshal(map[string]any{"program": map[string]string{"text": program}})
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPost, "http://pybox/v1/runs", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/x-ndjson")
	answer, err := daemon.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	events := json.NewDecoder(answer.Body)
	if answer.StatusCode != http.StatusOK {
		var problem struct{ Detail string }
		return errors.Join(events.Decode(&problem), fmt.Errorf("no run: %s", problem.Detail))
	}
	streams := map[string]io.Writer{"stdout": os.Stdout, "stderr": os.Stderr}
	for {
		var e event
		if err := events.Decode(&e); err != nil {
			return fmt.Errorf("the daemon is gone: %w", err)
		}
		switch e.Event {
		case "output":
			if _, err := streams[e.Stream].Write(append([]byte(e.Text), e.Base64...)); err != nil {
				return err
			}
		case "problem":
			return fmt.Errorf("no run: %s", e.Problem.Detail)
		case "receipt":
			fmt.Fprintln(os.Stderr, e.Receipt.Run.ID, e.Receipt.Ending.How)
			return nil
		}
	}
}
