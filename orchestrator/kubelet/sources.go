package kubelet

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/kubelet"
	podconfig "k8s.io/kubernetes/pkg/kubelet/config"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	"k8s.io/kubernetes/pkg/kubelet/util"

	"github.com/orlop-os/orlop/orchestrator/offlineapi"
)

// calm is how long after an API server has said which pods there are the kubelet has certainly
// taken them up.
const calm = 10 * time.Second

// incomplete gives the kubelet its source of pods, upstream's, and beside it one that says nothing
// until an API server has said which pods there are. Until all have said something the kubelet
// starts pods, and removes nothing of those that it does not know: what stands in for an API server
// (package standin) knows of some pods only, and the others' folders are theirs still. An API
// server that works for a moment, and is gone before it was asked for pods, changes nothing of
// that. config is that of the kubelet's client.
func incomplete(ctx context.Context, parts *kubelet.Dependencies, config *rest.Config, node string) error {
	answered, told := make(chan struct{}), make(chan struct{})
	config = rest.CopyConfig(config)
	first := sync.OnceFunc(func() { close(answered) })
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return listener{next, first} })
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client for pods: %w", err)
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	parts.Recorder = events.NewRecorder(legacyscheme.Scheme, v1.EventSource{Component: Name, Host: node})
	events.StartRecordingToSink(&corev1.EventSinkImpl{Interface: parts.EventClient.Events("")})
	parts.PodStartupLatencyTracker = util.NewPodStartupLatencyTracker()
	parts.PodConfig = podconfig.NewPodConfig(parts.Recorder, parts.PodStartupLatencyTracker)

	own := informers.NewSharedInformerFactoryWithOptions(parts.KubeClient, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, node).String()
	}))
	there := own.Core().V1().Nodes().Informer().HasSynced
	own.Start(ctx.Done())
	pods := overheard(ctx, parts.PodConfig.Channel(ctx, kubetypes.ApiserverSource), answered, told)
	podconfig.NewSourceApiserver(klog.FromContext(ctx), client, types.NodeName(node), there, pods)
	other := parts.PodConfig.Channel(ctx, "stand-in")
	go func() {
		select {
		case <-told:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(calm):
			nothing(other)
		case <-ctx.Done():
		}
	}()
	return nil
}

// listener calls first when an API server has answered; what stands in for one does not count.
type listener struct {
	next  http.RoundTripper
	first func()
}

// RoundTrip asks.
func (l listener) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.next.RoundTrip(r)
	if err == nil && answer.StatusCode == http.StatusOK && !offlineapi.ServedByOfflineAPI(answer.TLS) {
		l.first()
	}
	return answer, err
}

// overheard returns what passes on to to, and closes told when the first has passed that came after
// from was closed. Upstream's type of what a source says has no name outside.
func overheard[T any](ctx context.Context, to chan<- T, from <-chan struct{}, told chan<- struct{}) chan<- T {
	in := make(chan T)
	go func() {
		for {
			var said T
			select {
			case said = <-in:
			case <-ctx.Done():
				return
			}
			after := false
			select {
			case <-from:
				after = true
			default:
			}
			select {
			case to <- said:
			case <-ctx.Done():
				return
			}
			if after && told != nil {
				close(told)
				told = nil
			}
		}
	}()
	return in
}

// nothing sends that there is nothing.
func nothing[T any](to chan<- T) {
	var none T
	to <- none
}
