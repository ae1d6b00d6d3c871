package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// decode reads params strictly: an unknown key is an error.
func decode(params json.RawMessage, into any) error {
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	d := json.NewDecoder(bytes.NewReader(params))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if e := (*json.UnmarshalTypeError)(nil); errors.As(err, &e) {
		return fmt.Errorf("params.%s: not to be a JSON %s", e.Field, e.Value)
	}
	if err != nil {
		return fmt.Errorf("params: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// millis returns a number of milliseconds as a duration.
func millis(key string, n int64) (time.Duration, error) {
	const most = int64(1e12) // about 30 years
	if n < 0 || n > most {
		return 0, fmt.Errorf("params.%s: %d is not from 0 to %d", key, n, most)
	}
	return time.Duration(n) * time.Millisecond, nil
}
