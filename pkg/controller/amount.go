package controller

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"time"
)

// Amount is a number of units, constant or a function of the limit. As text
// it is a number, or sqrt(limit) or log10(limit), rounded down to a whole
// number and at least 1, optionally with a factor before and a minimum after:
// "4", "3*log10(limit)", "sqrt(limit), at least 4".
type Amount struct {
	of     string // "", "sqrt" or "log10"
	factor int    // the constant, when of is empty
	least  int
}

// Units returns a constant Amount.
func Units(n int) Amount { return Amount{factor: n} }

// The reference library says "log10i" and "sqrt table" for the same functions.
var amountSyntax = regexp.MustCompile(`^(?:(\d{1,9})\*)?(sqrt|log10)i?(?:\(limit\)| table)(?:, int)?(?:, at least (\d{1,9}))?$`)

var errAmount = errors.New(`not a number from 0 to 1e9, nor like "sqrt(limit), at least 4" or "3*log10(limit)"`)

// UnmarshalText reads the form that is described at the type.
func (a *Amount) UnmarshalText(text []byte) error {
	if n, err := strconv.Atoi(string(text)); err == nil {
		if n < 0 || n > 1e9 {
			return fmt.Errorf("%d: %w", n, errAmount)
		}
		*a = Units(n)
		return nil
	}
	m := amountSyntax.FindSubmatch(text)
	if m == nil {
		return fmt.Errorf("%.80q: %w", text, errAmount)
	}
	// The syntax allows only digits that fit.
	*a = Amount{of: string(m[2]), factor: 1}
	if len(m[1]) > 0 {
		a.factor, _ = strconv.Atoi(string(m[1]))
	}
	if len(m[3]) > 0 {
		a.least, _ = strconv.Atoi(string(m[3]))
	}
	return nil
}

// String returns the text that UnmarshalText reads.
func (a Amount) String() string {
	if a.of == "" {
		return strconv.Itoa(a.factor)
	}
	text := a.of + "(limit)"
	if a.factor != 1 {
		text = strconv.Itoa(a.factor) + "*" + text
	}
	if a.least != 0 {
		text += ", at least " + strconv.Itoa(a.least)
	}
	return text
}

// at returns the amount at a limit.
func (a Amount) at(limit float64) float64 {
	n := 1
	switch whole := truncate(limit); a.of {
	case "sqrt":
		n = int(math.Sqrt(float64(whole)))
	case "log10":
		// math.Log10(1000) is less than 3.
		n = 0
		for ; whole >= 10; whole /= 10 {
			n++
		}
	}
	return float64(max(max(n, 1)*a.factor, a.least))
}

// truncate drops the fraction of a limit and bounds it to what can be one.
func truncate(limit float64) int {
	if !(limit > 0) { // NaN too
		return 0
	}
	return int(min(limit, maxLimit))
}

// Horizon is how far back an average looks: a length of time, or a number of
// windows whatever their length. As text it is a duration or a whole number.
type Horizon struct {
	Time    time.Duration
	Windows int // counts when Time is 0
}

// UnmarshalText reads "600s" or "600".
func (h *Horizon) UnmarshalText(text []byte) error {
	if n, err := strconv.Atoi(string(text)); err == nil {
		if n < 1 || n > 1e9 {
			return fmt.Errorf("%d is not from 1 to 1e9 windows", n)
		}
		*h = Horizon{Windows: n}
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf(`%.80q is neither a duration such as "600s" nor a number of windows`, text)
	}
	if d < time.Millisecond || d > 10000*time.Hour {
		return fmt.Errorf("%v is not from 1ms to 10000h", d)
	}
	*h = Horizon{Time: d}
	return nil
}

// String returns the text that UnmarshalText reads.
func (h Horizon) String() string {
	if h.Time == 0 {
		return strconv.Itoa(h.Windows)
	}
	return h.Time.String()
}

// windows returns the horizon in windows of the given length, at least 1.
func (h Horizon) windows(length time.Duration) float64 {
	if h.Time == 0 {
		return max(1, float64(h.Windows))
	}
	return max(1, float64(h.Time)/float64(max(1, length)))
}
