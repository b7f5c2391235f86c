// Command testpod is the program of the stories' pods: a small web server that can also inspect the
// cluster from the inside. It is the only program in its image and there is no shell, so `kubectl
// exec` runs it by name.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

const deadline = 20 * time.Second

func main() {
	args := os.Args[1:]
	switch {
	// the container runtime runs it on the machine as a CNI plugin
	case os.Getenv("CNI_COMMAND") != "":
		args = []string{"connect"}
	case len(args) == 0:
		args = []string{"serve"}
	}
	if err := run(args); err != nil {
		fmt.Fprintln(os.Stderr, "testpod:", err)
		os.Exit(1)
	}
}

// copies starts processes that keep a processor busy, and waits for them.
func copies(n int) error {
	var all []*exec.Cmd
	for range n {
		c := exec.Command(os.Args[0], "copy")
		c.Env = []string{"GOMAXPROCS=1"}
		if err := c.Start(); err != nil {
			return err
		}
		all = append(all, c)
	}
	for _, c := range all {
		if err := c.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func run(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	switch {
	case args[0] == "serve" && len(args) == 1:
		return serve(":8080")
	case args[0] == "serve" && len(args) == 2: // the same on another port
		return serve(args[1])
	case args[0] == "stay" && len(args) == 1: // do nothing, and fail on SIGTERM
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		return fmt.Errorf("ended by %v", <-asked)
	// run this number of processes that keep a processor busy
	case args[0] == "copies" && len(args) == 2:
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return copies(n)
	case args[0] == "copy" && len(args) == 1:
		for ctx.Err() == nil { // until it is ended
		}
		return ctx.Err()
	case args[0] == "get" && len(args) == 2: // fetch a URL and print the answer
		return get(ctx, args[1], os.Stdout)
	// call a path of the API server with the pod's own token; print the status
	case args[0] == "api" && len(args) == 2:
		return askAPI(ctx, args[1])
	case args[0] == "lookup" && len(args) == 2: // resolve a name and print its addresses
		addrs, err := net.DefaultResolver.LookupHost(ctx, args[1])
		fmt.Println(strings.Join(addrs, "\n"))
		return err
	case args[0] == "dial" && len(args) == 2: // connect by TCP; print the result
		c, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "tcp", args[1])
		if err != nil {
			return err
		}
		fmt.Println("connected to", c.RemoteAddr())
		return c.Close()
	// run a DNS server that returns one address for every name
	case args[0] == "dns" && len(args) == 2:
		return answer(args[1])
	// install a pod network: address range, and the machine's directories for plugins and
	// configurations
	case args[0] == "network" && len(args) == 4:
		return bring(args[1], args[2], args[3])
	case args[0] == "connect" && len(args) == 1:
		return connect()
	// serve pods that authenticate with their certificates
	case args[0] == "serve-peers" && len(args) == 2:
		return servePeers(args[1])
	// call such a server
	case (args[0] == "ask-peer" || args[0] == "ask-anonymous") && len(args) == 2:
		return askPeer(ctx, args[1], args[0] == "ask-anonymous")
	case args[0] == "cat" && len(args) == 2: // print a file
		b, err := os.ReadFile(args[1])
		os.Stdout.Write(b)
		return err
	case args[0] == "list" && len(args) == 2: // list a directory
		entries, err := os.ReadDir(args[1])
		for _, e := range entries {
			fmt.Println(e)
		}
		return err
	// print an environment variable; it must exist
	case args[0] == "env" && len(args) == 2:
		value, found := os.LookupEnv(args[1])
		if !found {
			return fmt.Errorf("no variable %s", args[1])
		}
		fmt.Println(value)
		return nil
	case args[0] == "echo" && len(args) == 1: // print the first line of the standard input
		line, err := bufio.NewReader(os.Stdin).ReadString('\n')
		fmt.Print("you said ", line)
		return err
	case args[0] == "write" && len(args) == 3: // write a file, durably
		return write(args[1], []byte(args[2]))
	case args[0] == "fill" && len(args) == 3: // write a file of this size in MiB
		mib, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return write(args[1], make([]byte, mib<<20))
	// fill a file system up to this percentage of free space
	case args[0] == "crowd" && len(args) == 3:
		percent, err := strconv.ParseUint(args[2], 10, 64)
		if err != nil {
			return err
		}
		return crowd(args[1], percent)
	// print the files below a directory with their sizes in KiB
	case args[0] == "sizes" && len(args) == 2:
		return filepath.WalkDir(args[1], func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			info, err := entry.Info()
			if err == nil {
				fmt.Println(info.Size()>>10, path)
			}
			return err
		})
	}
	return fmt.Errorf("unknown arguments %q; serve [ADDRESS], stay, get URL, api PATH, lookup NAME, dial ADDRESS, dns ADDRESS, network RANGE PLUGINS CONFIGURATIONS, serve-peers ADDRESS, ask-peer ADDRESS, ask-anonymous ADDRESS, cat FILE, list FOLDER, env NAME, echo, write FILE TEXT, fill FILE MIB, crowd FILE PERCENT and sizes FOLDER are known", args)
}

// answer returns this IPv4 address for every DNS query, at UDP port 53, until the program is ended.
func answer(address string) error {
	ip := net.ParseIP(address).To4()
	if ip == nil {
		return fmt.Errorf("%s: no IPv4 address", address)
	}
	handler := func(w dns.ResponseWriter, question *dns.Msg) {
		reply := new(dns.Msg).SetReply(question)
		for _, q := range question.Question {
			if q.Qtype == dns.TypeA {
				reply.Answer = append(reply.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: ip})
			}
		}
		if err := w.WriteMsg(reply); err != nil {
			fmt.Fprintln(os.Stderr, "testpod: cannot answer:", err)
		}
	}
	return (&dns.Server{Addr: ":53", Net: "udp", Handler: dns.HandlerFunc(handler)}).ListenAndServe()
}

// crowd creates a file that fills a file system, except for a percentage of its size.
func crowd(name string, percent uint64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var s syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &s); err != nil {
		return err
	}
	size := int64(s.Bavail-s.Blocks*percent/100) * s.Bsize
	fmt.Println("taking", size>>20, "MiB")
	return syscall.Fallocate(int(f.Fd()), 0, 0, size)
}

func write(name string, content []byte) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return err
	}
	return f.Sync()
}

func serve(address string) error {
	name, _ := os.Hostname()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("request", r.URL.Path)
		fmt.Fprintf(w, "hello from %s\n", name)
	})
	// the address of the caller, as seen by the server
	http.HandleFunc("/caller", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "asked by", r.RemoteAddr)
	})
	// the answer of another URL, fetched from here
	http.HandleFunc("/fetch", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), deadline)
		defer cancel()
		if err := get(ctx, r.URL.Query().Get("url"), w); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	})
	// keep a processor busy for a time, at most an hour
	http.HandleFunc("/spin", func(w http.ResponseWriter, r *http.Request) {
		d, err := time.ParseDuration(r.URL.Query().Get("for"))
		if err != nil || d < 0 || d > time.Hour {
			http.Error(w, "for how long?", http.StatusBadRequest)
			return
		}
		go func() {
			for end := time.Now().Add(d); time.Now().Before(end); {
			}
		}()
		fmt.Fprintln(w, "spins for", d)
	})
	counted := 0
	// print this number of numbered lines of 15 KiB
	http.HandleFunc("/count/{lines}", func(w http.ResponseWriter, r *http.Request) {
		lines, err := strconv.Atoi(r.PathValue("lines"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for range lines {
			counted++
			fmt.Println(counted, strings.Repeat("x", 15000))
		}
	})
	server := &http.Server{Addr: address, ReadHeaderTimeout: deadline}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	go func() { <-ctx.Done(); server.Close() }()
	fmt.Println("serving as", name)
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// account is the directory in which the kubelet puts the pod's credentials for the API server.
const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

func askAPI(ctx context.Context, path string) error {
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://kubernetes.default"+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+string(token))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	r, err := client.Do(req)
	if err != nil {
		return err
	}
	fmt.Println(r.Status)
	return r.Body.Close()
}

func get(ctx context.Context, url string, out io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	_, err = io.Copy(out, r.Body)
	return err
}
