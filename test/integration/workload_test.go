package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/vm"
)

// testImage is the default name of the test image.
const testImage = "test.orlop.dev/testpod:1"

// scan connects to every TCP port of an address from a host in the closed network, and returns the
// open ports.
func (s *story) scan(addr string) ([]int, error) {
	scanner, err := s.network.NewHost("scanner", netip.Addr{})
	if err != nil {
		return nil, err
	}
	defer scanner.Close()
	var mu sync.Mutex
	var open []int
	var wait sync.WaitGroup
	room := make(chan struct{}, 128)
	for port := 1; port < 1<<16; port++ {
		room <- struct{}{}
		wait.Add(1)
		go func() {
			defer wait.Done()
			defer func() { <-room }()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			c, err := scanner.DialContext(ctx, "tcp", net.JoinHostPort(addr, strconv.Itoa(port)))
			if err == nil {
				c.Close()
				mu.Lock()
				open = append(open, port)
				mu.Unlock()
			}
		}()
	}
	wait.Wait()
	slices.Sort(open)
	return open, nil
}

// service returns the present state of the service with this name.
func service(ctx context.Context, c *client.Client, name string) (*api.ServiceStatus, error) {
	r, err := c.Service.List(ctx, &api.ListServicesRequest{})
	if err != nil {
		return nil, err
	}
	for _, one := range r.Services {
		if one.Name == name {
			return one, nil
		}
	}
	return nil, fmt.Errorf("service %s does not exist", name)
}

// killVerb kills the process of each service. A new process must run within 10 s. It must become
// ready within 3 minutes, the time that an emulated processor can need.
func (s *story) killVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, -1, "kill-services NAME [SERVICE…]")
	if args[0] != s.current {
		ts.Fatalf("kill-services: orlopctl calls machine %s, not %s; use fingerprint or trust first", s.current, args[0])
	}
	c := s.client(ts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	all, err := c.Service.List(ctx, &api.ListServicesRequest{})
	ts.Check(err)
	for _, name := range args[1:] {
		if !slices.ContainsFunc(all.Services, func(s *api.ServiceStatus) bool { return s.Name == name }) {
			ts.Fatalf("kill-services: machine %s has no service %s", args[0], name)
		}
	}
	for _, before := range all.Services {
		if len(args) > 1 && !slices.Contains(args[1:], before.Name) {
			continue
		}
		began := time.Now()
		_, err := c.Service.Restart(ctx, &api.RestartServiceRequest{Name: before.Name, Kill: true})
		if before.Name != "apid" { // the call goes through apid, so the end of apid breaks the call
			ts.Check(err)
		}
		// The check calls apid. While apid restarts, the function until repeats the check.
		err = until(10*time.Second, func() error {
			now, err := service(ctx, c, before.Name)
			if err == nil && (now.Pid == 0 || now.Pid == before.Pid) {
				err = fmt.Errorf("service %s is %s: %s", now.Name, now.State, now.Detail)
			}
			return err
		})
		if err != nil {
			ts.Fatalf("service %s has no new process within 10 s: %v", before.Name, err)
		}
		back := time.Since(began)
		err = until(3*time.Minute, func() error {
			now, err := service(ctx, c, before.Name)
			if err == nil && now.State != "running" {
				err = fmt.Errorf("service %s is %s: %s", now.Name, now.State, now.Detail)
			}
			return err
		})
		if err != nil {
			ts.Fatalf("service %s is not ready again: %v", before.Name, err)
		}
		s.note("killed %s: back after %.1fs, ready after %.1fs", before.Name, back.Seconds(), time.Since(began).Seconds())
	}
}

// followVerb reads the log of a pod with kubectl while the pod writes, until the log was rotated
// twice. Each line must occur once and in order.
//
// The pod (testpod serve) writes a few lines for each request. The next request waits until the
// reader has all earlier lines. A reader that is behind by a whole log file would miss lines, and a
// reader on an emulated machine is slow.
func (s *story) followVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "follow POD WATCHER")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	logs := kubectl(ctx, ts, "logs", "-f", args[0])
	out, err := logs.StdoutPipe()
	ts.Check(err)
	ts.Check(logs.Start())
	defer func() { cancel(); logs.Wait() }()
	in := bufio.NewScanner(out)
	const burst = 200 // lines of 15 KiB
	cuts, read := map[string]bool{}, 0
	for len(cuts) < 2 {
		if answer, err := kubectl(ctx, ts, "exec", args[0], "--", "/testpod", "get", fmt.Sprintf("http://127.0.0.1:8080/count/%d", burst)).CombinedOutput(); err != nil {
			ts.Fatalf("follow: the pod does not write: %v: %s", err, answer)
		}
		for end := read + burst; read < end; {
			if !in.Scan() {
				ts.Fatalf("log of %s ended after %d lines: %v", args[0], read, in.Err())
			}
			number, _, numbered := strings.Cut(in.Text(), " xxx")
			if !numbered {
				continue // a line that the pod writes for another reason
			}
			if read++; number != strconv.Itoa(read) {
				ts.Fatalf("log of %s: line %d is followed by %.80q", args[0], read-1, in.Text())
			}
		}
		files, err := kubectl(ctx, ts, "exec", "-n", "kube-system", args[1], "--", "/testpod", "sizes", "/logs").Output()
		ts.Check(err)
		for _, cut := range regexp.MustCompile(`/default_`+args[0]+`_\S+\.log\.[0-9-]+`).FindAllString(string(files), -1) {
			cuts[cut] = true
		}
	}
	s.note("followed the log of %s, which was cut %d times: %d lines, none missing", args[0], len(cuts), read)
}

// settledVerb waits until the service has run for this duration.
func (s *story) settledVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "settled SERVICE DURATION")
	long := deadlineOf(ts, args[1])
	c := s.client(ts)
	defer c.Close()
	limit := s.lasts(long + time.Minute)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	ts.Check(until(limit, func() error {
		now, err := service(ctx, c, args[0])
		if err != nil {
			return err
		}
		if been := s.network.Clock().Now().Sub(now.Since.AsTime()); now.State != "running" || been < long {
			return fmt.Errorf("service %s has been %s for %v", now.Name, now.State, been)
		}
		return nil
	}))
	s.note("%s has been running for %s", args[0], args[1])
}

// writer creates ConfigMaps one after the other. It stores the names of the ConfigMaps that the API
// server acknowledged. A later start continues with the next number.
type writer struct {
	kube         kubernetes.Interface
	cancel       context.CancelFunc
	done         chan struct{}
	next         int      // number of the next ConfigMap; valid after done, like the fields below
	acknowledged []string // names of the acknowledged ConfigMaps since the first start
	// since the last start: a write failed; a later write was acknowledged
	failed, resumed bool
}

func (w *writer) stop() { w.cancel(); <-w.done }

// writesPerSecond is the maximum rate of the writer. At this rate, a write is in progress most of
// the time, because a write takes some ten milliseconds. A story writes thousands of objects.
const writesPerSecond = 20

func (s *story) writesVerb(ts *testscript.TestScript, neg bool, args []string) {
	const usage = "writes start|check, writes stop [resumed]"
	need(ts, neg, args, 1, 2, usage)
	switch strings.Join(args, " ") {
	case "start":
		config, err := clientcmd.BuildConfigFromFlags("", ts.Getenv("KUBECONFIG"))
		ts.Check(err)
		config.Timeout, config.QPS, config.Burst = 5*time.Second, writesPerSecond, writesPerSecond
		kube, err := kubernetes.NewForConfig(config)
		ts.Check(err)
		if s.write == nil {
			s.write = &writer{}
		}
		ctx, cancel := context.WithCancel(context.Background())
		s.write.kube, s.write.cancel, s.write.done = kube, cancel, make(chan struct{})
		ten := make(chan struct{})
		go s.write.run(ctx, ten)
		select {
		case <-ten:
		case <-time.After(time.Minute):
			ts.Fatalf("writes: fewer than ten writes were acknowledged within a minute")
		}
	case "stop", "stop resumed":
		s.write.stop()
		s.note("%d writes were acknowledged", len(s.write.acknowledged))
		if len(args) == 2 && !s.write.resumed {
			ts.Fatalf("writes: no write failed (%t), or no write was acknowledged after a failed write", !s.write.failed)
		}
	case "check":
		stillThere(ts, s.write.kube.CoreV1().ConfigMaps("default"), s.write.acknowledged)
		s.note("all %d acknowledged writes are there", len(s.write.acknowledged))
	default:
		ts.Fatalf("usage: %s", usage)
	}
}

// stillThere fails the story if a ConfigMap that was acknowledged does not exist.
func stillThere(ts *testscript.TestScript, maps typed.ConfigMapInterface, acknowledged []string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	there := map[string]bool{}
	for page := (meta.ListOptions{Limit: 500}); ; {
		list, err := maps.List(ctx, page)
		ts.Check(err)
		for _, m := range list.Items {
			there[m.Name] = true
		}
		if page.Continue = list.Continue; page.Continue == "" {
			break
		}
	}
	for _, name := range acknowledged {
		if !there[name] {
			ts.Fatalf("the write of ConfigMap %s was acknowledged, but the ConfigMap does not exist", name)
		}
	}
}

// run writes until ctx ends. After ten acknowledged writes, it closes the channel ten. It does not
// repeat a failed write, because its object may exist.
func (w *writer) run(ctx context.Context, ten chan<- struct{}) {
	defer close(w.done)
	w.failed, w.resumed = false, false
	for before := len(w.acknowledged); ctx.Err() == nil; {
		name := fmt.Sprintf("write-%06d", w.next)
		w.next++
		m := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name}, Data: map[string]string{"n": strings.Repeat("x", 512)}}
		if _, err := w.kube.CoreV1().ConfigMaps("default").Create(ctx, m, meta.CreateOptions{}); err != nil {
			w.failed = w.failed || ctx.Err() == nil
			continue
		}
		w.resumed = w.failed
		if w.acknowledged = append(w.acknowledged, name); len(w.acknowledged) == before+10 {
			close(ten)
		}
	}
}

// reader reads from the API server repeatedly, each time over a new connection.
type reader struct {
	cancel context.CancelFunc
	done   chan struct{}
	read   int   // number of successful reads; valid after done
	failed error // the first failure, which ends the reader; valid after done
}

func (r *reader) stop() { r.cancel(); <-r.done }

func (s *story) readsVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "reads KUBECONFIG, reads stop")
	if args[0] == "stop" {
		if s.read == nil {
			ts.Fatalf("reads: no reader was started")
		}
		s.read.stop()
		if s.read.failed != nil || s.read.read == 0 {
			ts.Fatalf("reads: %d reads succeeded before the error %v; want a successful read and no error", s.read.read, s.read.failed)
		}
		s.note("%d reads, each over a new connection, none failed", s.read.read)
		s.read = nil
		return
	}
	config, err := clientcmd.BuildConfigFromFlags("", ts.MkAbs(args[0]))
	ts.Check(err)
	verify, err := rest.TLSConfigFor(config)
	ts.Check(err)
	c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: verify, DisableKeepAlives: true}}
	ctx, cancel := context.WithCancel(context.Background())
	s.read = &reader{cancel: cancel, done: make(chan struct{})}
	go s.read.run(ctx, c, config.Host+"/api/v1/namespaces/default")
}

func (r *reader) run(ctx context.Context, c *http.Client, url string) {
	defer close(r.done)
	for ctx.Err() == nil && r.failed == nil {
		if err := get(ctx, c, url); err == nil {
			r.read++
		} else if ctx.Err() == nil {
			r.failed = err
		}
	}
}

func get(ctx context.Context, c *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := c.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// outside analyzes the captured packets. It returns the flows to unicast addresses outside the
// closed network and outside the address ranges of the cluster. The second result is the number of
// captured frames.
func (s *story) outside() ([]string, int, error) {
	file, err := s.network.CaptureFile()
	if err != nil {
		return nil, 0, err
	}
	inside := []netip.Prefix{s.network.Subnet(), netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.96.0.0/12")}
	inside = append(inside, announced(s.bgp)...)
	if six := s.network.Six(); six.IsValid() {
		inside = append(inside, six, netip.MustParsePrefix("fd00:244::/48"), netip.MustParsePrefix("fd00:96::/112"))
	}
	report, err := vm.AnalyseCapture(file, inside...)
	if err != nil {
		return nil, 0, err
	}
	var out []string
	for _, f := range report.Outside {
		text, err := json.Marshal(f)
		if err != nil {
			return nil, 0, err
		}
		out = append(out, string(text))
	}
	return out, report.Frames, nil
}
