package kubelet

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/offlineapi"
)

// settleTime is how long the kubelet needs at most to process the list of pods of an API server.
const settleTime = 10 * time.Second

// holdRemovals gives the kubelet upstream's pod source, and a second source that stays silent until
// an API server has sent its list of pods. Until all sources have reported, the kubelet starts
// pods, but removes no unknown pods. This is necessary because the offline API server (package
// offlineapi) knows only some pods, and the directories of the other pods must remain. If an API
// server is ready only briefly and sends no list of pods, the second source stays silent. config is
// the configuration of the kubelet's client.
func holdRemovals(ctx context.Context, parts *kubelet.Dependencies, config *rest.Config, node string) error {
	answered, forwarded := make(chan struct{}), make(chan struct{})
	config = rest.CopyConfig(config)
	first := sync.OnceFunc(func() { close(answered) })
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return answerListener{next, first} })
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client for pods: %w", err)
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	parts.Recorder = events.NewRecorder(legacyscheme.Scheme, v1.EventSource{Component: Name, Host: node})
	events.StartRecordingToSink(&corev1.EventSinkImpl{Interface: parts.EventClient.Events("")})
	parts.PodStartupLatencyTracker = util.NewPodStartupLatencyTracker()
	parts.PodConfig = podconfig.NewPodConfig(parts.Recorder, parts.PodStartupLatencyTracker)

	nodeInformers := informers.NewSharedInformerFactoryWithOptions(parts.KubeClient, 0, component.Only(metav1.ObjectNameField, node))
	nodeSynced := nodeInformers.Core().V1().Nodes().Informer().HasSynced
	nodeInformers.Start(ctx.Done())
	pods := forward(ctx, parts.PodConfig.Channel(ctx, kubetypes.ApiserverSource), answered, forwarded)
	podconfig.NewSourceApiserver(klog.FromContext(ctx), client, types.NodeName(node), nodeSynced, pods)
	other := parts.PodConfig.Channel(ctx, "offline-api")
	go func() {
		select {
		case <-forwarded:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(settleTime):
			sendEmpty(other)
		case <-ctx.Done():
		}
	}()
	return nil
}

// answerListener calls first when an API server has answered; answers of the offline API server do
// not count.
type answerListener struct {
	next  http.RoundTripper
	first func()
}

// RoundTrip implements http.RoundTripper.
func (l answerListener) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.next.RoundTrip(r)
	if err == nil && answer.StatusCode == http.StatusOK && !offlineapi.ServedByOfflineAPI(answer.TLS) {
		l.first()
	}
	return answer, err
}

// forward returns a channel, and forwards the values that arrive on it to the channel `to`. It
// closes forwarded when it has forwarded the first value that arrived after answered was closed.
// The function is generic because upstream does not export the type of the values.
func forward[T any](ctx context.Context, to chan<- T, answered <-chan struct{}, forwarded chan<- struct{}) chan<- T {
	in := make(chan T)
	go func() {
		for {
			var value T
			select {
			case value = <-in:
			case <-ctx.Done():
				return
			}
			isAnswered := false
			select {
			case <-answered:
				isAnswered = true
			default:
			}
			select {
			case to <- value:
			case <-ctx.Done():
				return
			}
			if isAnswered && forwarded != nil {
				close(forwarded)
				forwarded = nil
			}
		}
	}()
	return in
}

// sendEmpty sends an empty update, by which a source tells the kubelet that it has reported.
func sendEmpty[T any](to chan<- T) {
	var none T
	to <- none
}
