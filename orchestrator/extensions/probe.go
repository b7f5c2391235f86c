package extensions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
)

// prober sends requests to the server, as the system and as clients on which the cluster depends.
// The requests change no object. A request is not sent if the cluster has no object that could
// block it.
type prober struct {
	accounts kubernetes.Interface // as the controller manager
	callers  []caller
	server   *http.Client // as the server itself
	host     string
	last     time.Time

	// the results
	refused     refusal
	classified  []classification
	unconverted map[string]string
}

// caller is a caller on which the cluster depends, with a request that it makes.
type caller struct {
	who    string
	client *http.Client
	path   string
}

// classification is the answer of priority and fairness to a request: the UIDs of its objects, and
// whether it rejected the request.
type classification struct {
	who, schema, level string
	rejected           bool
}

// newProber returns a prober for the server's connection to itself. A request that impersonates
// another user passes priority and fairness, webhooks and policies as a request of that user.
func newProber(config *rest.Config, node string) (*prober, error) {
	as := func(name string, groups ...string) *rest.Config {
		c := rest.CopyConfig(config)
		c.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append(groups, user.AllAuthenticated)}
		return c
	}
	p := &prober{host: config.Host}
	var err error
	if p.accounts, err = kubernetes.NewForConfig(as(user.KubeControllerManager)); err != nil {
		return nil, err
	}
	if p.server, err = rest.HTTPClientFor(config); err != nil {
		return nil, err
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/"
	for _, c := range []struct {
		who, path string
		as        *rest.Config
	}{
		{"kubelets", "/api/v1/nodes/" + node, as("system:node:"+node, user.NodesGroup)},
		{"the controller manager", leases + "kube-controller-manager", as(user.KubeControllerManager)},
		{"the scheduler", leases + "kube-scheduler", as(user.KubeScheduler)},
		{"admins", "/api/v1/namespaces/kube-system", as("orlop:probe", bootstrap.GroupAdmins)},
	} {
		client, err := rest.HTTPClientFor(c.as)
		if err != nil {
			return nil, err
		}
		p.callers = append(p.callers, caller{c.who, client, config.Host + c.path})
	}
	return p, nil
}

// run sends the requests every probeInterval. While a result names an obstacle, run sends them at
// each call, so the end of the obstacle is noticed soon.
func (p *prober) run(ctx context.Context, now observation) {
	if time.Since(p.last) < probeInterval && p.refused == (refusal{}) && len(p.unconverted) == 0 && !slices.ContainsFunc(p.classified, func(c classification) bool { return c.rejected }) {
		return
	}
	p.last = time.Now()
	ctx, cancel := context.WithTimeout(ctx, seriesTimeout)
	defer cancel()
	var all sync.WaitGroup
	p.refused, p.classified = refusal{}, nil
	if len(now.webhooks) > 0 || now.bindings {
		all.Go(func() { p.refused = p.create(ctx) })
	}
	if now.flows {
		all.Go(func() { p.classified = p.classify(ctx) })
	}
	all.Go(func() { p.unconverted = p.read(ctx, now.conversions) })
	all.Wait()
}

// create checks whether a component of the system may create an object in kube-system, with a dry
// run.
func (p *prober) create(ctx context.Context) refusal {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "orlop-probe", Namespace: metav1.NamespaceSystem}}
	if _, err := p.accounts.CoreV1().ServiceAccounts(account.Namespace).Create(ctx, account, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return parse(err.Error())
	}
	return refusal{}
}

// classify returns the answers of priority and fairness to the callers. Priority and fairness
// answers before authorization, so the callers need no rights.
func (p *prober) classify(ctx context.Context) []classification {
	results := make([]classification, len(p.callers))
	var all sync.WaitGroup
	for i, c := range p.callers {
		all.Go(func() {
			status, header, _, err := get(ctx, c.client, c.path, "application/json")
			if err == nil {
				results[i] = classification{
					c.who, header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID), header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID),
					status == http.StatusTooManyRequests,
				}
			}
		})
	}
	all.Wait()
	return slices.DeleteFunc(results, func(c classification) bool { return c.schema == "" })
}

// maxReads is the number of definitions whose objects are read at a time.
const maxReads = 4

// read returns the definitions with objects that the server cannot read, because the call of their
// converter fails. It reads one object of each definition in each served version: at most one
// version is the stored version, and the others need the converter. Other converters can be so slow
// that a definition is not read before ctx ends; the earlier result of that definition then
// remains.
func (p *prober) read(ctx context.Context, definitions []conversion) map[string]string {
	var mu sync.Mutex
	var all sync.WaitGroup
	out := map[string]string{}
	places := make(chan struct{}, maxReads)
	for _, d := range definitions {
		all.Go(func() {
			why, known := "", false
			select {
			case places <- struct{}{}:
				why, known = p.readVersions(ctx, d.reads)
				<-places
			case <-ctx.Done():
			}
			if !known {
				why = p.unconverted[d.definition]
			}
			if why != "" {
				mu.Lock()
				defer mu.Unlock()
				out[d.definition] = why
			}
		})
	}
	all.Wait()
	return out
}

// readVersions returns why the server cannot convert an object of one of the collections, or "".
// known is false if ctx ends first.
func (p *prober) readVersions(ctx context.Context, collections []string) (why string, known bool) {
	for _, path := range collections {
		if why := p.readOne(ctx, path); why != "" {
			return why, true
		}
	}
	return "", ctx.Err() == nil
}

// conversionFailed is an error of upstream's converter (apiextensions-apiserver,
// pkg/apiserver/conversion/webhook_converter.go).
var conversionFailed = regexp.MustCompile(`conversion webhook for .*? (?:failed|returned)(?:: |,| )(.*)`)

// readOne returns why the server cannot convert an object, or "". It reads the first object of the
// list once more by its name: the list comes from memory, but a single object comes from etcd and
// so needs the converter.
func (p *prober) readOne(ctx context.Context, collection string) string {
	body, why := p.metadata(ctx, "PartialObjectMetadataList", collection+"?limit=1")
	var list metav1.PartialObjectMetadataList
	if why != "" || json.Unmarshal(body, &list) != nil || len(list.Items) == 0 {
		return why
	}
	first := list.Items[0]
	version, resource := path.Split(collection)
	if first.Namespace != "" {
		version = path.Join(version, "namespaces", first.Namespace)
	}
	_, why = p.metadata(ctx, "PartialObjectMetadata", path.Join(version, resource, first.Name))
	return why
}

// metadata reads the metadata of objects in the form kind, for which the server converts the
// objects. why is the error of the converter; it is empty if there is none, or if ctx has ended.
func (p *prober) metadata(ctx context.Context, kind, path string) (body []byte, why string) {
	status, _, body, err := get(ctx, p.server, p.host+path, "application/json;g=meta.k8s.io;v=v1;as="+kind)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return nil, fmt.Sprintf("no answer within %v", probeTimeout)
	case err != nil:
		return nil, ""
	case status < http.StatusInternalServerError:
		return body, ""
	}
	var answer metav1.Status
	if json.Unmarshal(body, &answer) != nil {
		return nil, ""
	}
	if m := conversionFailed.FindStringSubmatch(strings.Join(strings.Fields(answer.Message), " ")); m != nil {
		return nil, m[1]
	}
	return nil, ""
}

// maxAnswer bounds the part of an answer that is read.
const maxAnswer = 1 << 20

// get sends a request, and waits at most probeTimeout for its answer.
func get(ctx context.Context, client *http.Client, url, accept string) (status int, header http.Header, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, nil, err
	}
	request.Header.Set("Accept", accept)
	answer, err := client.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	return answer.StatusCode, answer.Header, body, err
}
