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
	m, before := k.applied[o.key()]
	if !before || m.digest != o.Digest {
		delete(k.losses, o.key())
		return ""
	}
	if k.losses == nil {
		k.losses = map[key]loss{}
	}
	l := k.losses[o.key()]
	if now.Sub(l.created) >= lossPeriod {
		l.count = 0
	}
	if l.count >= freeLosses {
		if left := l.created.Add(restoreBackoff.Delay(l.count - freeLosses + 1)).Sub(now); left > 0 {
			return fmt.Sprintf("others have deleted it %d times in a row; it is created again in %s; the annotation %s: %s leaves it deleted", l.count+1, left.Round(time.Second), onceAnnotation, once)
		}
	}
	k.losses[o.key()] = loss{l.count + 1, now}
	return ""
}
