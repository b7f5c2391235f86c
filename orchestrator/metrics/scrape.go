package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

const (
	// interval is the time between two scrapes of a kubelet. A kubelet takes a new sample every 10
	// to 15 s, and the horizontal pod autoscaler reads the metrics every 15 s.
	interval = 15 * time.Second
	// dialTimeout is the deadline of a connection attempt to a kubelet. It is short, so that
	// unreachable nodes do not delay the scrapes of other nodes.
	dialTimeout = 2 * time.Second
	// scrapeTimeout is the deadline of a scrape.
	scrapeTimeout = 10 * time.Second
	// maxParallel is the largest number of scrapes at a time.
	maxParallel = 16
	// maxResponse is the largest size of a response that is read, in bytes. It is about five times
	// the response of a node with 500 pods. The parser needs at most ten times this memory.
	maxResponse = 8 << 20
)

// scraper scrapes the kubelets of all nodes.
type scraper struct {
	client *http.Client
	nodes  corelisters.NodeLister
	store  *store

	mu       sync.Mutex
	problems map[string]string // errors of the last round, by name of the node
	total    int               // number of nodes in the last round
}

// newScraper returns a scraper that uses the client certificate of the component. The certificate
// of a kubelet must be for the name of its node. A kubelet with another certificate is rejected,
// whatever address the Node has.
func newScraper(dirs dirs.Dirs, nodes corelisters.NodeLister, book *store) (*scraper, error) {
	at := func(name string) string { return filepath.Join(dirs.Controllers, name) }
	transport, err := rest.TransportFor(&rest.Config{
		TLSClientConfig: rest.TLSClientConfig{CAFile: at(nodespec.CA), CertFile: at(nodespec.MetricsCert), KeyFile: at(nodespec.MetricsKey)},
		Dial: func(ctx context.Context, network, name string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(name)
			if err != nil {
				return nil, err
			}
			node, err := nodes.Get(host)
			if err != nil {
				return nil, err
			}
			address, err := addressOf(node)
			if err != nil {
				return nil, err
			}
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, net.JoinHostPort(address, port))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to kubelets: %w", err)
	}
	// Redirects are not followed, because a kubelet could redirect this process to an address that
	// the node itself cannot reach.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &scraper{client: &http.Client{Transport: transport, Timeout: scrapeTimeout, CheckRedirect: stay}, nodes: nodes, store: book}, nil
}

// addressOf returns the address of the kubelet of a node: the first internal IP. It fails if the
// Node has none.
func addressOf(node *corev1.Node) (string, error) {
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address, nil
		}
	}
	return "", errors.New("its Node has no address yet")
}

// run scrapes all kubelets every interval until ctx is done.
func (s *scraper) run(ctx context.Context) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		s.round(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// round scrapes every kubelet once. It records each report as soon as it arrives, and does not wait
// for the other nodes.
func (s *scraper) round(ctx context.Context) {
	all, err := s.nodes.List(labels.Everything())
	if err != nil {
		klog.ErrorS(err, "The Nodes cannot be listed", "component", Name)
		return
	}
	present, problems := map[string]bool{}, map[string]string{}
	var mu sync.Mutex
	var running sync.WaitGroup
	slot := make(chan struct{}, maxParallel)
	for _, node := range all {
		present[node.Name] = true
		slot <- struct{}{}
		running.Go(func() {
			defer func() { <-slot }()
			r, err := s.scrape(ctx, node)
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				problems[node.Name] = err.Error()
				return
			}
			s.store.record(node.Name, r)
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return // scrapes that ctx has canceled are no problems
	}
	s.store.prune(present)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, problem := range problems {
		if s.problems[name] == "" {
			klog.InfoS("A kubelet does not report the usage of its node", "component", Name, "node", name, "reason", problem)
		}
	}
	s.problems, s.total = problems, len(all)
}

// scrape requests the metrics from the kubelet of a node and parses the response.
func (s *scraper) scrape(ctx context.Context, node *corev1.Node) (report, error) {
	port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = paths.PortKubelet
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(node.Name, strconv.Itoa(port))+"/metrics/resource", nil)
	if err != nil {
		return report{}, err
	}
	received := time.Now()
	response, err := s.client.Do(request)
	if err != nil {
		return report{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return report{}, errors.New(response.Status)
	}
	return parse(io.LimitReader(response.Body, maxResponse), received)
}

// describe returns a text about the failed scrapes of the last round, or "" if none failed.
func (s *scraper) describe() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return describe(s.total, s.problems)
}

func describe(asked int, problems map[string]string) string {
	if len(problems) == 0 {
		return ""
	}
	var names []string
	for name := range problems {
		names = append(names, name)
	}
	first := slices.Min(names)
	return fmt.Sprintf("%d of %d nodes do not report their usage, the first: %s: %s", len(names), asked, first, problems[first])
}
