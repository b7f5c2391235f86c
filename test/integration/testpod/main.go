// Command testpod is the program of the pods in stories. It is a small web server that can also
// inspect the cluster from inside a pod. Its image contains no other program and no shell, so
// `kubectl exec` runs it by its name.
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

// deadline is the time limit of a command that does not serve until it is stopped.
const deadline = 20 * time.Second

func main() {
	args := os.Args[1:]
	switch {
	// The container runtime sets this variable when it runs the program as a CNI plugin.
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

// copies starts n processes that each keep a processor busy, and waits until all have ended.
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

// command is a command of the program.
type command struct {
	name, args string // names of the arguments, separated by spaces
	run        func(ctx context.Context, args []string) error
}

// commands are the commands of the program. Commands with the same name differ in their arguments.
var commands = []command{
	{"serve", "", func(context.Context, []string) error { return serve(":8080") }},
	{"serve", "ADDRESS", func(_ context.Context, args []string) error { return serve(args[0]) }},
	// wait for SIGTERM, and then fail
	{"stay", "", func(context.Context, []string) error {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		return fmt.Errorf("ended by %v", <-asked)
	}},
	// print NUMBER lines, each with TEXT and the number of the line; then serve
	{"say", "TEXT NUMBER", func(_ context.Context, args []string) error {
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		for i := range n {
			fmt.Println(args[0], i+1)
		}
		return serve(":8080")
	}},
	// run NUMBER processes that each keep a processor busy
	{"copies", "NUMBER", func(_ context.Context, args []string) error {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		return copies(n)
	}},
	// keep a processor busy until the deadline; the command copies runs this command
	{"copy", "", func(ctx context.Context, _ []string) error {
		for ctx.Err() == nil {
		}
		return ctx.Err()
	}},
	// fetch a URL and print the answer
	{"get", "URL", func(ctx context.Context, args []string) error { return get(ctx, args[0], os.Stdout) }},
	// request a path of the API server with the token of the pod; print the status
	{"api", "PATH", func(ctx context.Context, args []string) error { return askAPI(ctx, args[0]) }},
	// fetch an https URL of a server of the cluster, with or without the token of the pod; print
	// the status and the answer
	{"scrape", "URL", func(ctx context.Context, args []string) error { return scrape(ctx, args[0], true) }},
	{"scrape-anonymous", "URL", func(ctx context.Context, args []string) error { return scrape(ctx, args[0], false) }},
	// resolve a name and print its addresses
	{"lookup", "NAME", func(ctx context.Context, args []string) error {
		addrs, err := net.DefaultResolver.LookupHost(ctx, args[0])
		fmt.Println(strings.Join(addrs, "\n"))
		return err
	}},
	// connect to a TCP address
	{"dial", "ADDRESS", dial},
	// run a DNS server that answers each query with ADDRESS
	{"dns", "ADDRESS", func(_ context.Context, args []string) error { return answer(args[0]) }},
	// install a pod network: RANGE has the addresses of pods; PLUGINS and CONFIGURATIONS are the
	// directories of the machine for CNI plugins and their configurations
	{"network", "RANGE PLUGINS CONFIGURATIONS", func(_ context.Context, args []string) error {
		return bring(args[0], args[1], args[2])
	}},
	// run as a CNI plugin
	{"connect", "", func(context.Context, []string) error { return connect() }},
	// serve clients that authenticate with the certificates of their pods
	{"serve-peers", "ADDRESS", func(_ context.Context, args []string) error { return servePeers(args[0]) }},
	// call a server of serve-peers, with or without the certificate of the pod
	{"ask-peer", "ADDRESS", func(ctx context.Context, args []string) error { return askPeer(ctx, args[0], false) }},
	{"ask-anonymous", "ADDRESS", func(ctx context.Context, args []string) error { return askPeer(ctx, args[0], true) }},
	// print a file
	{"cat", "FILE", func(_ context.Context, args []string) error {
		b, err := os.ReadFile(args[0])
		os.Stdout.Write(b)
		return err
	}},
	// list a directory
	{"list", "DIR", func(_ context.Context, args []string) error {
		entries, err := os.ReadDir(args[0])
		for _, e := range entries {
			fmt.Println(e)
		}
		return err
	}},
	// print an environment variable; fail if it is not set
	{"env", "NAME", func(_ context.Context, args []string) error {
		value, found := os.LookupEnv(args[0])
		if !found {
			return fmt.Errorf("no variable %s", args[0])
		}
		fmt.Println(value)
		return nil
	}},
	// print the first line of standard input
	{"echo", "", func(context.Context, []string) error {
		line, err := bufio.NewReader(os.Stdin).ReadString('\n')
		fmt.Print("you said ", line)
		return err
	}},
	// write a file and sync it to the disk
	{"write", "FILE TEXT", func(_ context.Context, args []string) error { return write(args[0], []byte(args[1])) }},
	// write a file of MIB MiB
	{"fill", "FILE MIB", func(_ context.Context, args []string) error {
		mib, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return write(args[0], make([]byte, mib<<20))
	}},
	// fill a file system until PERCENT of it is free
	{"crowd", "FILE PERCENT", func(_ context.Context, args []string) error {
		percent, err := strconv.ParseUint(args[1], 10, 64)
		if err != nil {
			return err
		}
		return crowd(args[0], percent)
	}},
	// print each file below a directory, with its size in KiB
	{"sizes", "DIR", sizes},
}

func run(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	var known []string
	for _, c := range commands {
		if c.name == args[0] && len(strings.Fields(c.args)) == len(args)-1 {
			return c.run(ctx, args[1:])
		}
		known = append(known, strings.TrimSpace(c.name+" "+c.args))
	}
	return fmt.Errorf("unknown arguments %q; known are: %s", args, strings.Join(known, ", "))
}

// dial connects to a TCP address and prints the result.
func dial(ctx context.Context, args []string) error {
	c, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "tcp", args[0])
	if err != nil {
		return err
	}
	fmt.Println("connected to", c.RemoteAddr())
	return c.Close()
}

// sizes prints each file below a directory, with its size in KiB.
func sizes(_ context.Context, args []string) error {
	return filepath.WalkDir(args[0], func(path string, entry fs.DirEntry, err error) error {
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

// answer runs a DNS server on UDP port 53 until the process ends. The server answers each query for
// an IPv4 address with the given address.
func answer(address string) error {
	ip := net.ParseIP(address).To4()
	if ip == nil {
		return fmt.Errorf("%s: is not an IPv4 address", address)
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

// crowd allocates a file so that the given percentage of the file system remains free.
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
	// print the address of the caller that the server sees
	http.HandleFunc("/caller", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "asked by", r.RemoteAddr)
	})
	// fetch another URL from this pod and return the answer
	http.HandleFunc("/fetch", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), deadline)
		defer cancel()
		if err := get(ctx, r.URL.Query().Get("url"), w); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	})
	// keep a processor busy for the given duration, at most an hour
	http.HandleFunc("/spin", func(w http.ResponseWriter, r *http.Request) {
		d, err := time.ParseDuration(r.URL.Query().Get("for"))
		if err != nil || d < 0 || d > time.Hour {
			http.Error(w, "the parameter for must be a duration of at most an hour", http.StatusBadRequest)
			return
		}
		go func() {
			for end := time.Now().Add(d); time.Now().Before(end); {
			}
		}()
		fmt.Fprintln(w, "spins for", d)
	})
	counted := 0
	// print this number of lines of 15 kB; each line begins with its number, counted over all
	// requests
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

// account is the directory of the pod's credentials for the API server, which the kubelet mounts.
const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

func askAPI(ctx context.Context, path string) error {
	r, err := askCluster(ctx, "https://kubernetes.default"+path, true)
	if err != nil {
		return err
	}
	fmt.Println(r.Status)
	return r.Body.Close()
}

func scrape(ctx context.Context, url string, withToken bool) error {
	r, err := askCluster(ctx, url, withToken)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	fmt.Println(r.Status)
	_, err = io.Copy(os.Stdout, r.Body)
	return err
}

// askCluster requests a URL, with or without the token of the pod. It verifies the certificate of
// the server by the CA of the cluster.
func askCluster(ctx context.Context, url string, withToken bool) (*http.Response, error) {
	ca, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if withToken {
		token, err := os.ReadFile(account + "token")
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+string(token))
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	return client.Do(req)
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
