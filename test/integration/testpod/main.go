// Command testpod is what the stories run in pods: a small web server that can also look at the cluster from the inside.
// It is the only program in its image, so `kubectl exec` calls it by name: there is no shell in there either.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const deadline = 20 * time.Second

func main() {
	args := os.Args[1:]
	if len(args) == 0 {
		args = []string{"serve"}
	}
	if err := run(args); err != nil {
		fmt.Fprintln(os.Stderr, "testpod:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	switch {
	case args[0] == "serve":
		return serve()
	case args[0] == "get" && len(args) == 2: // fetch a URL and print the answer
		return get(ctx, args[1])
	case args[0] == "lookup" && len(args) == 2: // resolve a name and print its addresses
		addrs, err := net.DefaultResolver.LookupHost(ctx, args[1])
		fmt.Println(strings.Join(addrs, "\n"))
		return err
	case args[0] == "dial" && len(args) == 2: // connect by TCP; say what happened
		c, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "tcp", args[1])
		if err != nil {
			return err
		}
		fmt.Println("connected to", c.RemoteAddr())
		return c.Close()
	case args[0] == "cat" && len(args) == 2: // print a file
		b, err := os.ReadFile(args[1])
		os.Stdout.Write(b)
		return err
	case args[0] == "write" && len(args) == 3: // write a file, durably
		f, err := os.Create(args[1])
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.WriteString(args[2]); err != nil {
			return err
		}
		return f.Sync()
	}
	return fmt.Errorf("unknown arguments %q; serve, get URL, lookup NAME, dial ADDRESS, cat FILE and write FILE TEXT are known", args)
}

func serve() error {
	name, _ := os.Hostname()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("request", r.URL.Path)
		fmt.Fprintf(w, "hello from %s\n", name)
	})
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: deadline}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	go func() { <-ctx.Done(); server.Close() }()
	fmt.Println("serving as", name)
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	_, err = io.Copy(os.Stdout, r.Body)
	return err
}
