package addons

import (
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// loss counts how often an object was deleted by others in a row.
type loss struct {
	count   int
	created time.Time // when the object was created again the last time
}

// freeLosses is the number of losses after which an object is still restored at once.
// restoreBackoff is the delay after each further loss. An object that has existed for lossPeriod is
// not lost in a row any more.
const (
	freeLosses = 5
	lossPeriod = time.Hour
)

var restoreBackoff = backoff.Backoff{Min: 30 * time.Second, Max: lossPeriod / 2}

// restoreDelay returns why a missing object is not created now; empty: it is created. The first
// losses are accidents. An object that disappears again and again has another owner: a garbage
// collector, because its owner does not exist, or a controller of its own, for which it is done.
// Without the delay it would be created again for ever, unnoticed.
func (k *reconciler) restoreDelay(o Object, now time.Time) string {
	if !k.isLost(o) {
		delete(k.losses, o.key())
		return ""
	}
	l := k.losses[o.key()]
	if l.count < freeLosses || now.Sub(l.created) >= lossPeriod {
		return ""
	}
	left := l.created.Add(restoreBackoff.Delay(l.count - freeLosses + 1)).Sub(now)
	if left <= 0 {
		return ""
	}
	return fmt.Sprintf("others have deleted it %d times in a row; it is created again in %s; the annotation %s: %s leaves it deleted", l.count+1, left.Round(time.Second), onceAnnotation, once)
}

// isLost reports whether a missing object with this text has existed.
func (k *reconciler) isLost(o Object) bool {
	m, before := k.applied[o.key()]
	return before && m.digest == o.Digest
}

// recordRestored counts the loss of a missing object that was created again. An object that cannot
// be created is lost once, regardless of the number of attempts.
func (k *reconciler) recordRestored(o Object, now time.Time) {
	if !k.isLost(o) {
		return
	}
	if k.losses == nil {
		k.losses = map[key]loss{}
	}
	l := k.losses[o.key()]
	if now.Sub(l.created) >= lossPeriod {
		l.count = 0
	}
	k.losses[o.key()] = loss{l.count + 1, now}
}
